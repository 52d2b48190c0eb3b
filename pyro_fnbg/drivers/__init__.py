"""``MultiChainMCMC``: many chains in this process or in several."""
