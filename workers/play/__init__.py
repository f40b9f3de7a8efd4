"""TODO workers/play"""
