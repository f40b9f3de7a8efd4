"""TODO master/run"""
