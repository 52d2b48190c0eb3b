"""Show blocks that miss parameters and repeat others where a layer is wider than all before it.

The paper's code (``eeyore`` 0.0.20, ``MLP.layer_and_node_from_par_block``) takes the number of a
node in its layer modulo the number of nodes of the layers before. The paper's own networks are
unaffected.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from pyro_fnbg import FNBG, BayesianMLP, noisy_xor


def node_in_layer(widths: list[int], block: int) -> tuple[int, int]:
    """Return a node's layer and its number there, by the same arithmetic."""
    ends = [0, *accumulate(widths[1:])]
    layer = next(n for n, end in enumerate(ends[1:]) if block < end)
    first = ends[layer]
    return layer, (block if first == 0 else block % first)


def parameters(widths: list[int]) -> Iterator[int]:
    """List the flat coordinates of all blocks: each node's weights, then its bias."""
    starts = [0, *accumulate((a + 1) * b for a, b in zip(widths, widths[1:], strict=False))]
    for block in range(sum(widths[1:])):
        layer, node = node_in_layer(widths, block)
        inputs, nodes = widths[layer : layer + 2]
        yield from range(starts[layer] + node * inputs, starts[layer] + (node + 1) * inputs)
        yield starts[layer] + inputs * nodes + node


for widths in ([2, 2, 2, 2, 2, 2, 2, 1], [2, 2, 5], [2, 3, 8, 2]):
    total = sum((a + 1) * b for a, b in zip(widths, widths[1:], strict=False))
    counts = Counter(parameters(widths))
    missing = [i for i in range(total) if i not in counts]
    other = sorted(i for i, count in counts.items() if count > 1 or i >= total)
    print(f"{widths}: {total} parameters; never updated: {missing}; repeated or none: {other}")
    likelihood = "bernoulli" if widths[-1] == 1 else "categorical"
    kernel = FNBG(BayesianMLP(widths, likelihood=likelihood))
    data = noisy_xor(20, 4)
    kernel.setup(0, data.x_train, data.y_train)
    print(f"  pyro_fnbg: {kernel.partition.num_blocks} blocks, each parameter in one of them")

try:
    from eeyore.constants import loss_functions
    from eeyore.models.mlp import MLP, Hyperparameters
except ImportError as error:
    print(f"eeyore, in the extra `bench` of this project, is not asked: {error}")
else:
    hparams = Hyperparameters([2, 2, 5], [True] * 2, [None] * 2)
    model = MLP(loss_functions["multiclass_classification"], hparams=hparams)
    blocks = [model.par_block_indices(block)[0] for block in range(model.num_par_blocks())]
    print("eeyore's blocks of [2, 2, 5]:", blocks)
