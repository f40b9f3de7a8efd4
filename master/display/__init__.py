"""TODO master/display"""
