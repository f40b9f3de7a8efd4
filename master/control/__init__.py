"""TODO master/control"""
