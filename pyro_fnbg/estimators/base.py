"""What the estimators share: sampling, warm starts, files."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pyro_fnbg.core.checks import check_count, check_flag, check_names, shown
from pyro_fnbg.drivers.multi_chain import MultiChainMCMC
from pyro_fnbg.estimators.files import pack, read_archive, unpack, write_archive
from pyro_fnbg.estimators.network import (
    SCALE_SITE,
    as_words,
    checked_hidden,
    from_words,
    network,
    site_shapes,
    unconstrained,
)
from pyro_fnbg.kernel import FNBG
from pyro_fnbg.model.sites import seeded
from pyro_fnbg.networks.mlp import BayesianMLP
from pyro_fnbg.results.export import assemble, to_groups
from pyro_fnbg.results.function_space import PredictionDiagnostics, diagnose_predictions

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["NetworkEstimator"]


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]
    """Sample a network and keep its draws; the classifier and the regressor say of what.

    A fit leaves the network (``_model``), the run or the groups of ArviZ made from it (``_run``,
    ``_groups``: one of the two, each with the draws), and the number of fits that it went on from
    (``_continued``).
    """

    _model: BayesianMLP
    _run: MultiChainMCMC | None
    _groups: dict[str, xr.Dataset] | None
    _idata: Any
    _continued: int
    target_: str
    n_features_in_: int

    def __init__(
        self,
        hidden: tuple[int, ...] = (16,),
        *,
        activation: str = "relu",
        prior_scale: float | tuple[float, ...] = 2.0,
        num_samples: int = 1000,
        warmup_steps: int = 1000,
        thin: int = 1,
        num_chains: int = 2,
        batch_size: int | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        progress: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.prior_scale = prior_scale
        self.num_samples = num_samples
        self.warmup_steps = warmup_steps
        self.thin = thin
        self.num_chains = num_chains
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.random_state = random_state
        self.progress = progress

    @property
    def idata_(self) -> Any:
        """The run as ``to_arviz`` gives it, made when it is asked for first."""
        check_is_fitted(self)
        if self._idata is None:
            groups = self._as_groups()
            self._idata = assemble({name: group.copy() for name, group in groups.items()})
        return self._idata

    def diagnose(self, X: ArrayLike) -> PredictionDiagnostics:  # noqa: N803 as scikit-learn has it
        """Diagnose the chains by what they predict for some rows; see ``diagnose_predictions``.

        Chains that have converged agree on predictions, not on weights, since nodes can change
        places. A regressor's means and errors are in standard deviations of the response.

        Args:
            X: Inputs of some rows, ``(rows, features)``.

        Returns:
            R-hat, effective sample sizes, Monte Carlo errors and, of classes, the agreement of
            chains; ``print`` shows the worst of it.
        """
        inputs = self._inputs(X)
        (num_chains,) = {len(value) for value in self._draws().values()}
        return diagnose_predictions(self._model, self._samples(), inputs, num_chains)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, which ``load`` reads without running code of it.

        The file has the arguments, the draws and statistics of ``idata_`` with the responses that
        were observed, and no inputs. It is written in one step: until it is whole, an older file
        stays as it is. Of a link, the file that it leads to is written; permissions stay.

        Args:
            path: Name of the file; no ending is added.

        Raises:
            sklearn.exceptions.NotFittedError: Before ``fit``.
            TypeError: If ``path`` is none.
            ValueError: If ``path`` is a folder or device, or an argument of the estimator is of a
                kind that the file cannot hold, such as a ``RandomState``; names it.
            OSError: If the file cannot be written.
        """
        check_is_fitted(self)
        words, arrays = pack(self._as_groups())
        more_words, more_arrays = self._response_to_file()
        names = getattr(self, "feature_names_in_", None)
        content = {
            "estimator": type(self).__name__,
            "arguments": {
                name: _plain(name, value) for name, value in self.get_params(deep=False).items()
            },
            "network": as_words(self._model),
            "continued": self._continued,
            "features": None if names is None else names.tolist(),
            "response": more_words,
            "groups": words,
        }
        write_archive(path, content, arrays | more_arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an estimator that ``save`` wrote; nothing is unpickled.

        A file takes no more than a few times its own size of memory. A class of your own that
        inherits from an estimator reads the files that it saved itself.

        Args:
            path: Name of the file.

        Raises:
            TypeError: If ``path`` is none.
            OSError: If the file cannot be read.
            ValueError: If it is another file, one of another estimator, of a newer format,
                truncated or damaged; names it.
        """
        words, arrays = read_archive(path)
        name = words.get("estimator")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{path} is damaged: it says {shown(name)} where the estimator stands")
        if name != cls.__name__:
            raise ValueError(f"{path} holds a {name}, not a {cls.__name__}: use {name}.load")
        try:
            arguments: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in words["arguments"].items()
            }
            loaded = cls(**arguments)
            loaded._from_file(words, arrays)
        except Exception as error:  # whatever xarray, torch and NumPy make of damaged words
            raise ValueError(f"{path} is damaged: {shown(error)}") from error
        return loaded

    def _from_file(self, words: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self._run, self._idata = None, None
        self._groups = groups = unpack(words["groups"], arrays)
        self._model = from_words(words["network"], _checked_draws(groups["posterior"]))
        shapes = {str(n): v.shape[2:] for n, v in groups["posterior"].data_vars.items()}
        if shapes != site_shapes(self._model):
            raise ValueError(f"the network has no draws of shapes {shapes}")
        self._continued = words["continued"]
        check_count("continued", self._continued, 0)
        self.target_ = groups["posterior"].attrs["target"]
        if not isinstance(self.target_, str):
            raise ValueError(f"target must be text, got {shown(self.target_)}")
        self.n_features_in_ = self._model.widths[0]
        if (features := words["features"]) is not None:
            check_names("features", features, "text")
            if len(features) != self.n_features_in_:
                raise ValueError(f"the network has not the inputs {shown(features)}")
            self.feature_names_in_ = np.array(features, dtype=object)
        self._response_from_file(words["response"], arrays)

    @abstractmethod
    def _response_to_file(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Give words and arrays that describe the response."""

    @abstractmethod
    def _response_from_file(
        self, words: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        """Take over what describes the response."""

    def __getstate__(self) -> dict[str, Any]:
        # What idata_ shows is made again of the draws; as it is, they would be pickled twice
        state: dict[str, Any] = super().__getstate__()
        return state | {"_idata": None} if "_idata" in state else state

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Leave the estimator as it was if a fit fails or is interrupted."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _goes_on(self) -> bool:
        """Whether a fit starts where the one before ended."""
        check_flag("warm_start", self.warm_start)
        return bool(self.warm_start) and hasattr(self, "_model")

    def _sample(
        self,
        x: NDArray[Any],
        y: Tensor,
        num_outputs: int,
        likelihood: str,
        observation_scale: float | str | None = 1.0,
    ) -> None:
        check_flag("progress", self.progress)
        widths = (x.shape[1], *checked_hidden(self.hidden), num_outputs)
        inputs = torch.tensor(x)
        model = network(
            widths,
            self.activation,
            self.prior_scale,
            likelihood,
            observation_scale,
            inputs.dtype,
        )
        starts = self._starts(model) if self._goes_on() else None
        continued = 0 if starts is None else self._continued + 1
        run = MultiChainMCMC(
            FNBG(model, batch_size=self.batch_size, thin=self.thin),
            self.num_samples,
            self.warmup_steps,
            initial_params=starts,
            num_chains=self.num_chains,
            disable_progbar=not self.progress,
        )
        # A chain that goes on must not meet the noise again that led it here
        (stream,) = np.random.SeedSequence([_seed(self.random_state), continued]).generate_state(
            1, np.uint64
        )
        with seeded(int(stream)):
            run.run(inputs, y)
        self._model, self._run, self._groups, self._idata = model, run, None, None
        self._continued = continued
        self.target_ = run.kernel.target

    def _starts(self, model: BayesianMLP) -> dict[str, Tensor]:
        """Return the last positions of the chains, as starts for a network."""
        before, now = site_shapes(self._model), site_shapes(model)
        if before != now:
            raise ValueError(
                "warm_start=True goes on with the network of the fit before, so its parameters "
                f"must stay {shown(before)}; now they are {shown(now)}"
            )
        draws = self._draws()
        (num_chains,) = {len(value) for value in draws.values()}
        if num_chains != self.num_chains:
            raise ValueError(
                f"num_chains must be {num_chains}, as in the fit before that warm_start=True goes "
                f"on from; got {shown(self.num_chains)}"
            )
        last = unconstrained(self._model, {name: value[:, -1] for name, value in draws.items()})
        return last if num_chains > 1 else {name: value[0] for name, value in last.items()}

    def _draws(self) -> dict[str, Tensor]:
        """Return the draws, ``(chains, draws, ...)`` by site."""
        if self._run is not None:
            return self._run.get_samples(group_by_chain=True)
        posterior = self._as_groups()["posterior"]
        # Torch wants memory that can be written to, which that of a memory map is not
        return {
            name: torch.from_numpy(np.require(posterior[name].values, requirements="W"))
            for name in site_shapes(self._model)
        }

    def _as_groups(self) -> dict[str, xr.Dataset]:
        if self._groups is None:
            # The run has a copy of the data, which nothing needs any more
            self._groups, self._run = to_groups(self._run), None
        return self._groups

    def _inputs(self, x: ArrayLike) -> Tensor:
        """Check inputs to predict for, and return them in the type of the parameters."""
        check_is_fitted(self)
        weight = self._draws()["layer1.weight"]
        return torch.tensor(validate_data(self, x, reset=False, dtype=weight[:0].numpy().dtype))

    def _samples(self) -> dict[str, Tensor]:
        """Return the draws of all chains in one dimension."""
        return {name: value.flatten(0, 1) for name, value in self._draws().items()}


def _seed(random_state: object) -> int:
    try:
        return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    except ValueError:
        raise ValueError(
            "random_state must be a whole number from 0 to 2^32 - 1, a numpy RandomState or None, "
            f"got {shown(random_state)}"
        ) from None


def _checked_draws(posterior: xr.Dataset) -> torch.dtype:
    """Return the type of draws that were read.

    Raises:
        ValueError: If they have several or none, are not finite, or are not by chain and draw.
    """
    draws = posterior.data_vars
    dtypes = {value.dtype for value in draws.values()}
    if len(dtypes) != 1 or not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)}:
        raise ValueError(f"draws must be float32, or all float64; got {shown(dtypes)}")
    for name, value in draws.items():
        if value.dims[:2] != ("chain", "draw") or 0 in value.shape:
            raise ValueError(f"{name} must have chains and draws, got {dict(value.sizes)}")
        if not np.isfinite(value.values).all() or (name == SCALE_SITE and (value <= 0).any()):
            raise ValueError(f"{name} has draws that are not possible")
    return torch.from_numpy(np.zeros(0, dtypes.pop())).dtype


def _plain(name: str, value: Any) -> Any:
    """Return an argument as JSON holds it."""
    value = [_plain(name, entry) for entry in value] if isinstance(value, list | tuple) else value
    value = value.item() if isinstance(value, np.generic) else value
    try:
        json.dumps(value)
    except TypeError:
        raise ValueError(
            f"{name} cannot be saved: the file holds numbers, text, lists of them and None; got "
            f"{shown(value)}. set_params({name}=None) before save() leaves it out"
        ) from None
    return value
