"""TODO master/fleet"""
