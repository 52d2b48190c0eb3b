"""Pictures are whole PNG files in text, and leave no figure behind."""

import base64
import io

import matplotlib.pyplot as plt
import numpy as np

from pyro_fnbg import FNBG
from pyro_fnbg.command_line.figures import acceptance_figure, ranks_figure, traces_figure
from pyro_fnbg.command_line.quantities import Quantity
from support.drivers import drive
from support.stores import NET, X, Y


def size(source):
    head, _, text = source.partition(",")
    assert head == "data:image/png;base64"
    return plt.imread(io.BytesIO(base64.b64decode(text))).shape[:2]


def test_pictures_are_in_text():
    values = np.random.default_rng(0).normal(size=(6, 30))
    quantity = Quantity("weight[0]", "value", values, 3)
    assert size(traces_figure(quantity, range(6))) == (816, 1140)  # of four chains
    assert size(ranks_figure(quantity, range(6))) == (360, 840)
    mcmc = drive(FNBG(NET), X, Y, num_chains=2)
    assert size(acceptance_figure([one.report for one in mcmc._diagnostics])) == (420, 552)
    assert not plt.get_fignums()
