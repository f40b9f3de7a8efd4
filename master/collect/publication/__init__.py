"""Parts of the ledger of one publication."""
