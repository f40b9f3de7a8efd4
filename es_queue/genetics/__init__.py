"""TODO es_queue/genetics"""
