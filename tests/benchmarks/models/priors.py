"""Priors with scales of their own: of a network's weights, of slopes, of groups."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.models.case import Case, diabetes, generator

__all__ = ["groups", "horseshoe", "weight_scales"]


def weight_scales() -> Case:
    def model(x: Tensor, y: Tensor | None = None, hidden: int = 8) -> None:
        inputs = x.shape[1]
        scale1 = pyro.sample("scale1", dist.HalfNormal(1.0))
        scale2 = pyro.sample("scale2", dist.HalfNormal(1.0))
        w1 = pyro.sample("w1", dist.Normal(0.0, scale1).expand([inputs, hidden]).to_event(2))
        b1 = pyro.sample("b1", dist.Normal(0.0, 1.0).expand([hidden]).to_event(1))
        w2 = pyro.sample("w2", dist.Normal(0.0, scale2).expand([hidden]).to_event(1))
        mean = torch.tanh(x @ w1 + b1) @ w2
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    named = ("scale1", "scale2", "sigma")
    return Case(model, diabetes(), identified=named, narrow=("w1", "w2"))


def horseshoe() -> Case:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        tau = pyro.sample("tau", dist.HalfCauchy(1.0))
        with pyro.plate("predictors", x.shape[1]):
            lam = pyro.sample("lam", dist.HalfCauchy(1.0))
            beta = pyro.sample("beta", dist.Normal(0.0, tau * lam))
        intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(intercept + x @ beta, sigma), obs=y)

    # Means of tau and lam do not exist or hardly; those of the slopes do
    return Case(model, diabetes(), identified=("beta", "intercept", "sigma"))


def groups() -> Case:
    num_groups = 12

    def model(group: Tensor, x: Tensor, y: Tensor | None = None) -> None:
        mu_a = pyro.sample("mu_a", dist.Normal(0.0, 5.0))
        sigma_a = pyro.sample("sigma_a", dist.HalfNormal(2.0))
        mu_b = pyro.sample("mu_b", dist.Normal(0.0, 5.0))
        sigma_b = pyro.sample("sigma_b", dist.HalfNormal(2.0))
        with pyro.plate("groups", num_groups):
            a = pyro.sample("a", dist.Normal(mu_a, sigma_a))
            b = pyro.sample("b", dist.Normal(mu_b, sigma_b))
        sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(a[group] + b[group] * x, sigma), obs=y)

    group = torch.arange(240) % num_groups
    x = torch.randn(240, generator=generator())
    a, b = torch.randn(2, num_groups, generator=generator(1))
    y = 1.0 + a[group] + (0.5 + b[group]) * x + 0.5 * torch.randn(240, generator=generator(2))
    named = ("mu_a", "sigma_a", "mu_b", "sigma_b", "a", "b", "sigma")
    return Case(model, (group, x, y), identified=named, rows_to_agree=240)
