"""TODO es_queue/numerics"""
