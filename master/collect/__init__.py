"""Collects the results of a publication: ledgers, blocks, stragglers, audit."""
