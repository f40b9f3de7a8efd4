"""TODO es_queue/environments/mujoco"""
