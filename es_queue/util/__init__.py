"""TODO es_queue/util"""
