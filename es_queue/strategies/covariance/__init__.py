"""Strategies whose step size follows an evolution path, from one deviation to a full covariance."""

from es_queue.strategies.covariance.cma_es import CMAES
from es_queue.strategies.covariance.csa_es import CSAES
from es_queue.strategies.covariance.lm_ma_es import LMMAES
from es_queue.strategies.covariance.sep_cma_es import SepCMAES

__all__ = ["CMAES", "CSAES", "LMMAES", "SepCMAES"]
