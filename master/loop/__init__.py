"""TODO master/loop"""
