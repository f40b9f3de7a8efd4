"""TODO master/collect"""
