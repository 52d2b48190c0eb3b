"""Show that "10" first-layer blocks of a node are 78: the code's number is a size, not a count.

The paper sets beta_1 = 10, ten blocks of 78 or 79 parameters in each node of the first layer: 130
blocks a sweep. Its code (``eeyore`` 0.0.20, ``chunk_evenly``) takes the ten for the number of
parameters in a block: 78 blocks of 10 or 11 in each node, 810 a sweep.
"""

import numpy as np

INPUTS, NODES, REST = 784, 10, 30  # of MLP(784,10,10,10,10); the rest are 30 nodes of 11 parameters

per_node = np.array_split(np.arange(INPUTS + 1), (INPUTS + 1) // 10)
as_size = sorted({len(part) for part in per_node}), NODES * len(per_node) + REST
per_node = np.array_split(np.arange(INPUTS + 1), 10)
as_count = sorted({len(part) for part in per_node}), NODES * len(per_node) + REST
print("ten as a count, as in the text: parts of {} parameters, {} blocks a sweep".format(*as_count))
print("ten as a size, as in the code: parts of {} parameters, {} blocks a sweep".format(*as_size))

try:
    from eeyore.itertools import chunk_evenly
except ImportError as error:
    print(f"eeyore, in the extra `bench` of this project, is not asked: {error}")
else:
    parts = list(chunk_evenly(list(range(INPUTS + 1)), 10))
    print(f"eeyore: {len(parts)} parts of {sorted({len(part) for part in parts})} parameters")
