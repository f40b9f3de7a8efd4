"""TODO master/cli"""
