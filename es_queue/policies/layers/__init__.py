"""TODO es_queue/policies/layers"""
