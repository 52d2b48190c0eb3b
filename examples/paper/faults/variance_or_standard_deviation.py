"""Show that the numbers of Tables 5 and 6, headed "standard deviation", are variances.

The paper's scripts take the square root of these numbers before they go to the sampler, and its
text calls them variances. Chains that took them for standard deviations would hardly move: the
rates that the tables give beside them could not be.
"""

import numpy as np
import torch

from pyro_fnbg import FNBG, BayesianMLP, MultiChainMCMC, noisy_xor

# Of batches of 3,000 images, by layer
FIRST, SECOND, THIRD, OUTPUT = table = np.array([1e-2, 1e-4, 1e-4, 1e-5])
print("Table 5, batch size 3,000:", table)
print("standard deviations, if these are variances:", np.sqrt(table).round(4))

# The same on noisy XOR, where the text says "proposal variance 0.04": 2,000 sweeps of one chain
data = noisy_xor()
model = BayesianMLP([2] * 7 + [1], prior_scale=10**0.5, likelihood="bernoulli")
for name, scale in (("0.04 as a variance", 0.2), ("0.04 as a standard deviation", 0.04)):
    torch.manual_seed(1)
    kernel = FNBG(
        model, batch_size=100, likelihood_scale="batch", proposal_scale=scale, adapt=False
    )
    mcmc = MultiChainMCMC(kernel, 2_000, 2_000, num_chains=4, disable_progbar=True)
    mcmc.run(data.x_train, data.y_train)
    rates = 100 * np.mean([list(r["acceptance rate by layer"].values()) for r in mcmc.reports], 0)
    print(f"noisy XOR, {name}: acceptance by layer (%)", rates.round(1))
