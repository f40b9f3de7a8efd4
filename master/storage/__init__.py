"""TODO master/storage"""
