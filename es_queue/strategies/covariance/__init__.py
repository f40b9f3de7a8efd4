"""Strategies whose step size follows an evolution path, from one deviation to a full covariance."""
