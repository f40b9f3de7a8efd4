"""What an es-master keeps beside itself: a private server, local workers, and the supervisor that
outlives it.
"""
