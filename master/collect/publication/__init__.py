"""What the ledger of one publication is made of."""
