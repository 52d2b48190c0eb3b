"""The package's seeded faults: small mistakes, each with a test that must then fail.

``pyro_fnbg/testing/faults.py`` puts them in place, runs the tests and judges. It is loaded here by
its path: to import the package would come before the fault.

To add a fault, append to one of the lists at the end of this file. To look at one by hand:
``PYRO_FNBG_FAULT=<name> python -m pytest <test>``.
"""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Modules whose functions the fused engine compiles
COMPILED = {
    f"pyro_fnbg.engines.fused.{name}"
    for name in (
        "compiled", "elementwise", "layers", "likelihoods", "memory", "moves", "normal",
        "priors", "proposals", "rescaling", "sharing", "vectors",
    )
}  # fmt: skip

_spec = importlib.util.spec_from_file_location(
    "seeded_faults", ROOT / "pyro_fnbg" / "testing" / "faults.py"
)
harness = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = harness  # as dataclasses ask
_spec.loader.exec_module(harness)

Fault, run_fault = harness.Fault, harness.run_fault
assert_killed, assert_passes = harness.assert_killed, harness.assert_passes
pytest_exception_interact = harness.pytest_exception_interact


def install_requested() -> None:
    """Put the fault of the package in place that the environment asks for, if any."""
    harness.install_requested(FAULTS, COMPILED)


_PROPOSE = """    def propose(
        state: BatchState, block: int, values: Tensor | None = None
    ) -> Proposal[BatchState]:
        candidate = density(displaced(state.position, blocks[block], increment, values))
"""
_PROPOSE_STALE = """    stale: list[Tensor] = []

    def propose(
        state: BatchState, block: int, values: Tensor | None = None
    ) -> Proposal[BatchState]:
        if block == 0:
            stale[:] = [state.position]
        stale.append(displaced(stale[-1], blocks[block], increment, values))
        candidate = BatchState(
            displaced(state.position, blocks[block], increment, values),
            density(stale[-1]).log_terms,
        )
"""
_ACCEPT = """    if accepted:
        for c in range(net.block_starts[block], net.block_starts[block + 1]):
            position[net.coordinates[c]] = work.candidate[c]
        if is_seen:
            keep(net, work, block, count)
"""
_ACCEPT_ALL_NODES = """    if is_seen and net.block_nodes[block] >= 0:
        keep(net, work, block, count)
    if accepted:
        for c in range(net.block_starts[block], net.block_starts[block + 1]):
            position[net.coordinates[c]] = work.candidate[c]
        if is_seen and net.block_nodes[block] < 0:
            keep(net, work, block, count)
"""
_ACCEPT_ALL_POSITIONS = """    for c in range(net.block_starts[block], net.block_starts[block + 1]):
        position[net.coordinates[c]] = work.candidate[c]
    if accepted:
        if is_seen:
            keep(net, work, block, count)
"""

# Tests that know the right answer by another way than the engines, by engine
_REVERSIBLE = (
    "tests/exactness/test_enumeration.py::"
    "test_each_block_is_reversible_and_the_sweep_leaves_the_posterior_invariant[{}]"
)
_INVARIANT = (
    "tests/exactness/test_enumeration.py::"
    "test_each_batch_leaves_prior_times_its_likelihood_invariant[2-full-{}]"
)
_NO_TRACE = (
    "tests/engines/test_every_engine.py::test_rejected_blocks_leave_no_trace[parts-7-dtype1-{}]"
)
_NEW_BATCH = (
    "tests/engines/test_every_engine.py::test_the_current_position_is_judged_on_the_new_batch[{}]"
)
# Two that build the engine past the check at set-up, by engine and case
_BIT_BY_BIT = "tests/engines/test_feedforward.py::test_rejected_blocks_leave_no_trace"
_CAPTURED = (
    "tests/engines/test_captured.py::test_rejected_blocks_leave_no_trace_of_what_is_kept[network]"
)
_SUMS = (
    "tests/engines/test_captured.py::"
    "test_the_log_density_changes_by_the_ratios_of_what_is_accepted[network]"
)
_SWEEPS = "tests/test_seeded.py::test_sweeps_are_those_of_the_model[{}-{}]"
_TUNING = "tests/engines/test_base.py::test_scales_follow_their_recursion_sweep_by_sweep[{}]"
_SHARED = "tests/engines/test_fused_threads.py::"

# Every one of these is put into every engine, as the fault "MISTAKE-ENGINE"
MISTAKES = (
    "ratio-sign",
    "no-revert",
    "stale-proposal",
    "always-accept",
    "current-state-not-re-evaluated",
    "wrong-rows",
    "likelihood-factor-dropped",
    "prior-scaled-with-the-likelihood",
    "prior-dropped",
    "jacobian-dropped",
    "noise-shared-between-chains",
    "tuning-away-from-the-target",
    "tuning-by-the-gain-of-another-sweep",
)


def _in_core(
    mistake: str, module: str, old: str, new: str, of_trace: str, of_feedforward: str
) -> list[Fault]:
    """Put a mistake into what three engines share; each has to notice it."""
    # The model's own judgement shares the sign
    of_captured = {"ratio-sign": _SUMS, "tuning-away-from-the-target": _TUNING}.get(
        mistake, _CAPTURED
    )
    tests = {"trace": of_trace, "captured": of_captured, "feedforward": of_feedforward}
    return [
        Fault(f"{mistake}-{name}", f"pyro_fnbg.core.{module}", old, new, test.format(name), name)
        for name, test in tests.items()
    ]


def _in_trace(mistake: str, module: str, old: str, new: str, test: str) -> Fault:
    killed_by = test.format("trace")
    return Fault(f"{mistake}-trace", f"pyro_fnbg.{module}", old, new, killed_by, "trace")


def _in_captured(mistake: str, module: str, old: str, new: str, test: str) -> Fault:
    killed_by = test.format("captured")
    return Fault(f"{mistake}-captured", f"pyro_fnbg.{module}", old, new, killed_by, "captured")


def _in_compiled(mistake: str, old: str, new: str) -> Fault:
    killed_by = (
        "tests/engines/test_compiled.py::"
        "test_functions_are_compiled_at_their_first_call_for_any_values_and_strides"
    )
    module = "pyro_fnbg.engines.captured.compiled"
    return Fault(f"{mistake}-compiled", module, old, new, killed_by, "compiled")


def _in_feedforward(
    mistake: str, old: str, new: str, case: str, module: str = "feedforward"
) -> Fault:
    killed_by = case.format("feedforward") if "::" in case else _SWEEPS.format("feedforward", case)
    return Fault(
        f"{mistake}-feedforward",
        f"pyro_fnbg.{module}" if "." in module else f"pyro_fnbg.engines.{module}",
        old,
        new,
        killed_by,
        "feedforward",
    )


def _in_fused(mistake: str, module: str, old: str, new: str, case: str) -> Fault:
    killed_by = case if "::" in case else _SWEEPS.format("fused", case)
    return Fault(
        f"{mistake}-fused", f"pyro_fnbg.engines.fused.{module}", old, new, killed_by, "fused"
    )


_GENERAL = [
    Fault(
        name="laplace-squared-feedforward",
        module="pyro_fnbg.core.prior_terms",
        old="torch.where(self._is_laplace, -errors.abs(), terms)",
        new="torch.where(self._is_laplace, -errors.square(), terms)",
        killed_by=_SWEEPS.format("feedforward", "laplace"),
    ),
    Fault(
        name="degrees-of-freedom-off-by-one-feedforward",
        module="pyro_fnbg.core.prior_terms",
        old="-0.5 * (self._degrees + 1)",
        new="-0.5 * self._degrees",
        killed_by=_SWEEPS.format("feedforward", "student priors"),
    ),
    Fault(
        name="student-normalizer",
        module="pyro_fnbg.core.priors",
        old="half.lgamma() - (half + 0.5).lgamma()",
        new="half.lgamma() + (half + 0.5).lgamma()",
        killed_by="tests/engines/test_network.py::test_priors_of_other_families",
    ),
    Fault(
        name="upper-tail-of-gammas-by-the-lower",
        module="pyro_fnbg.core.moves.conjugate",
        old="gammainccinv(shapes, tail)",
        new="gammaincinv(shapes, tail)",
        killed_by="tests/core/test_conjugate_move.py::"
        "test_noise_is_the_quantile_of_a_gamma_distribution_in_both_tails[7.3]",
    ),
    Fault(
        name="precision-of-a-conditional-without-its-last-column",
        module="pyro_fnbg.core.moves.gibbs",
        old="precision[..., i, j] = precision[..., j, i] = both",
        new="precision[..., i, j] = precision[..., j, i] = both * (i < len(units) - 1)",
        killed_by="tests/core/test_gibbs_move.py::"
        "test_a_draw_is_the_mean_and_noise_through_the_root_of_the_precision[shape0]",
    ),
    Fault(
        name="normal-draw-without-the-way-back",
        module="pyro_fnbg.core.moves.gibbs",
        old="correction = 0.5 * (noise.square().sum((-1, -2)) - back)",
        new="correction = 0.5 * noise.square().sum((-1, -2))",
        killed_by="tests/core/test_gibbs_move.py::"
        "test_a_draw_is_the_mean_and_noise_through_the_root_of_the_precision[shape0]",
    ),
    Fault(
        name="normal-draw-with-half-the-prior",
        module="pyro_fnbg.engines.fused.normal",
        old="rate = 2.0 * net.prior_rates[at]",
        new="rate = net.prior_rates[at]",
        killed_by="tests/exactness/test_gibbs_on_engines.py::"
        "test_the_conditional_in_closed_form[fused]",
    ),
    Fault(
        name="normal-draw-with-noise-reused",
        module="pyro_fnbg.engines.fused.normal",
        old="total = shift[i] + np.float64(work.increments[c])",
        new="total = shift[i] + np.float64(work.increments[moves.order[first]])",
        killed_by="tests/exactness/test_gibbs_on_engines.py::"
        "test_the_conditional_in_closed_form[fused]",
    ),
    Fault(
        name="normal-draw-of-a-prior-whose-scale-is-not-looked-up",
        module="pyro_fnbg.engines.fused.normal",
        old="if net.holders[at] >= 0:",
        new="if net.holders[at] >= len(position):",
        killed_by="tests/exactness/test_gibbs_on_engines.py::"
        "test_fast_engines_make_the_draws_of_the_trace_engine[shared-fused]",
    ),
    Fault(
        name="exact-draws-are-picked-in-batches",
        module="pyro_fnbg.chains.setup",
        old="wanted = Walk.name if is_auto and not plan.is_full else config.moves",
        new="wanted = config.moves",
        killed_by="tests/chains/test_setup.py::test_moves_are_picked_by_network_data_and_engine",
    ),
    Fault(
        name="a-block-does-not-get-the-move-of-its-layer",
        module="pyro_fnbg.core.blocks",
        old="given.get(block.name, given.get(self.layer_label(block)))",
        new="given.get(block.name)",
        killed_by="tests/core/test_moves.py::"
        "test_moves_are_given_by_name_of_a_block_or_of_its_layer",
    ),
    Fault(
        name="rescaling-without-its-jacobian-of-biases",
        module="pyro_fnbg.core.rescaling",
        old="2.0 * inputs - size, dtype",
        new="2.0 * inputs - size - 1, dtype",
        killed_by="tests/core/test_rescaling.py::"
        "test_draws_from_the_prior_stay_draws_from_the_prior",
    ),
    Fault(
        name="rescaling-that-leaves-outgoing-weights",
        module="pyro_fnbg.core.rescaling",
        old="before * by, before / by)",
        new="before * by, before)",
        killed_by="tests/core/test_rescaling.py::test_the_function_stays",
    ),
    Fault(
        name="rescaling-with-the-noise-of-another-node",
        module="pyro_fnbg.core.rescaling",
        old="(noise.log_u[..., layer.own] < log_ratios)",
        new="(noise.log_u[..., layer.own][..., :1] < log_ratios)",
        killed_by="tests/core/test_rescaling.py::test_ratios_by_hand[normal]",
    ),
    Fault(
        name="rescaling-by-the-factor-of-the-first-node",
        module="pyro_fnbg.engines.fused.rescaling",
        old="noise.rescaling[1, k, node]",
        new="noise.rescaling[1, k, 0]",
        killed_by="tests/exactness/test_rescaling_on_engines.py::"
        "test_engines_rescale_as_the_trace_engine_does[normal-fused]",
    ),
    Fault(
        name="compiled-rescaling-without-its-jacobian-of-outgoing-weights",
        module="pyro_fnbg.engines.fused.rescaling",
        old="(2 * middle - end)",
        new="middle",
        killed_by="tests/exactness/test_rescaling_on_engines.py::"
        "test_engines_rescale_as_the_trace_engine_does[normal-fused]",
    ),
    Fault(
        name="sum-of-squares-not-halved",
        module="pyro_fnbg.core.moves.conjugate",
        old="0.5 * sums.index_add",
        new="sums.index_add",
        killed_by="tests/core/test_conjugate_move.py::test_draw_is_of_the_conditional_by_hand",
    ),
    Fault(
        name="number-of-parameters-not-halved",
        module="pyro_fnbg.core.priors",
        old="counts / 2 - forms",
        new="counts - forms",
        killed_by="tests/core/test_core_priors.py::test_variances_of_normal_priors_are_drawn",
    ),
    Fault(
        name="variance-taken-for-a-scale",
        module="pyro_fnbg.model.priors",
        old="_replace(scale_power=power)",
        new="_replace(scale_power=1.0)",
        killed_by="tests/model/test_priors.py::test_scales_and_variances_are_told_apart",
    ),
    Fault(
        name="conditionals-not-compared",
        module="pyro_fnbg.engines.choice",
        old="    check_conditionals(problem, at)\n",
        new="",
        killed_by="tests/model/test_priors.py::"
        "test_a_variance_that_the_likelihood_sees_is_not_drawn_from_its_prior_alone[trace]",
    ),
    Fault(
        name="scale-of-a-prior-dropped-feedforward",
        module="pyro_fnbg.core.prior_terms",
        old="terms - log_scales",
        new="terms - 0.0",
        killed_by=_SWEEPS.format("feedforward", "scales of priors"),
    ),
    Fault(
        name="fan-out-for-fan-in",
        module="pyro_fnbg.networks.priors",
        old="below for below, _ in pairwise(widths)",
        new="above for _, above in pairwise(widths)",
        killed_by="tests/networks/test_mlp.py::test_structure_is_readable",
    ),
    Fault(
        name="first-batch-for-ever",
        module="pyro_fnbg.engines.base",
        old="rows_of_sweeps(chain.key, first, count)",
        new="rows_of_sweeps(chain.key, 0, count)",
        killed_by="tests/engines/test_base.py::"
        "test_inputs_are_the_noise_and_the_batches_of_the_next_sweeps[batches]",
    ),
    Fault(
        name="noise-shared-between-chains-of-a-run",
        module="pyro_fnbg.stock.seeds",
        old="key = ChainKey(mark.key.seed, mark.key.chain + 1)",
        new="key = mark.key",
        killed_by="tests/test_kernel.py::test_sequential_chains_differ_and_repeat",
    ),
    Fault(
        name="adaptation-after-warmup",
        module="pyro_fnbg.engines.base",
        old="gains(first, count) if first < problem.tuned_sweeps else None",
        new="gains(first, count)",
        killed_by="tests/engines/test_base.py::test_untuned_and_frozen_scales_stay_as_they_are[fused]",
    ),
    Fault(
        name="warmup-counted-as-draws",
        module="pyro_fnbg.engines.base",
        old="warmup_tally=tally if in_warmup else chain.warmup_tally,\n"
        "        draw_tally=chain.draw_tally if in_warmup else tally,",
        new="warmup_tally=tally,\n        draw_tally=tally,",
        killed_by="tests/test_kernel.py::test_sequential_chains_leave_nothing_to_the_next",
    ),
    Fault(
        name="impossible-candidate-feeds-nan-to-the-tuner",
        module="pyro_fnbg.core.step",
        old=".exp().nan_to_num(nan=0.0)",
        new=".exp()",
        killed_by="tests/core/test_step.py::test_accept_prob",
    ),
    Fault(
        name="lp-from-batches",
        module="pyro_fnbg.results.export",
        old="if reports[0].plan.is_exact:",
        new="if reports[0].plan.temperature == 1.0:",
        killed_by="tests/results/test_export.py::test_only_chains_for_the_models_posterior_have_lp",
    ),
    Fault(
        name="rows-of-the-last-chunk-twice",
        module="pyro_fnbg.model.rows",
        old="value.narrow(axis, known, plate.num_rows - known)",
        new="value",
        killed_by="tests/results/test_export.py::test_models_that_subsample_themselves_give_all_rows",
    ),
]

_GOES_ON = (
    "tests/stores/test_runs.py::test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been[fused]"
)
_STRETCHES = (
    "tests/drivers/test_collect.py::"
    "test_stretches_made_elsewhere_give_the_same_draws_and_reports[False-1]"
)
# Mistakes in what runs many chains, and many sweeps a call, by engines that are right
_IN_DRIVER = [
    Fault(
        "chains-of-the-driver-share-a-key",
        "pyro_fnbg.drivers.multi_chain",
        "[ChainKey(seed, chain) for",
        "[ChainKey(seed, 0) for",
        "tests/drivers/test_multi_chain.py::test_each_chain_is_that_of_pyros_driver[given-fused]",
    ),
    Fault(
        "first-sweep-of-a-draw-kept-by-the-driver",
        "pyro_fnbg.drivers.collect",
        "record.positions[problem.thin - 1 :: problem.thin]",
        "record.positions[:: problem.thin]",
        "tests/drivers/test_collect.py::"
        "test_draws_and_statistics_are_those_of_the_chain_with_the_last_sweep_of_each_draw",
    ),
    Fault(
        "first-sweep-of-a-draw-sent-by-a-worker",
        "pyro_fnbg.drivers.cluster",
        "record.positions[problem.thin - 1 :: problem.thin]",
        "record.positions[:: problem.thin]",
        _STRETCHES,
    ),
    Fault(
        "statistics-of-a-stretch-given-to-another-chain",
        "pyro_fnbg.drivers.collect",
        "self.statistics[stretch.number].extend",
        "self.statistics[stretch.number - 1].extend",
        _STRETCHES,
    ),
    Fault(
        "results-of-tasks-out-of-order",
        "pyro_fnbg.core.tasks",
        "> ahead:\n            yield workers.result(pending.popleft())",
        "> ahead:\n            yield workers.result(pending.pop())",
        "tests/core/test_tasks.py::test_results_come_in_the_order_of_items[threads]",
    ),
    Fault(
        "statistics-given-to-another-chain",
        "pyro_fnbg.drivers.collect",
        "self.statistics[piece.number].add",
        "self.statistics[piece.number - 1].add",
        "tests/drivers/test_collect.py::"
        "test_draws_and_statistics_are_those_of_the_chain_with_the_last_sweep_of_each_draw",
    ),
    Fault(
        "draws-written-to-another-chain",
        "pyro_fnbg.drivers.draws",
        "self._values[name][chain, first:stop]",
        "self._values[name][chain - 1, first:stop]",
        "tests/drivers/test_draws.py::test_draws_are_constrained_and_stay_in_their_chain_in_order",
    ),
    Fault(
        "the-longest-chain-alone-is-kept",
        "pyro_fnbg.chains.keeping",
        "if len(chains) * num_draws > len(best[0]) * best[1]:",
        "if num_draws > best[1]:",
        "tests/chains/test_keeping.py::test_as_many_draws_are_kept_as_chains_of_one_length_can_have",
    ),
    Fault(
        "a-checkpoint-forgets-what-moves-learnt",
        "pyro_fnbg.stores.runs",
        "position=state.position.to(device), adaptation=adaptation",
        "position=state.position.to(device), adaptation=problem.moves.start()",
        _GOES_ON,
    ),
    Fault(
        "a-checkpoint-confuses-the-tallies",
        "pyro_fnbg.stores.checkpoint",
        '"draw_accepted": state.draw_tally.accepted',
        '"draw_accepted": state.warmup_tally.accepted',
        _GOES_ON,
    ),
    Fault(
        "draws-of-a-checkpoint-are-lost",
        "pyro_fnbg.stores.writer",
        "self.fill(tail, 0)",
        "self.filled = len(next(iter(tail.values())))",
        _GOES_ON,
    ),
    Fault(
        "a-chunk-begins-at-the-last-draw",
        "pyro_fnbg.stores.writer",
        "done += chunk.fill(values, done)",
        "done += chunk.fill(values, 0)",
        "tests/stores/test_runs.py::test_a_finished_run_is_extended[38]",
    ),
    Fault(
        "readers-are-told-before-chunks-are-there",
        "pyro_fnbg.stores.writer",
        "whole = {number: chunk.first for number, chunk in self._chunks.items()}",
        "whole = self.counts",
        "tests/stores/test_runs.py::test_draws_of_a_run_that_was_killed_are_all_there",
    ),
    Fault(
        "chains-that-go-together-are-torn-apart",
        "pyro_fnbg.stores.writer",
        "return all(len({chains[one].sweeps for one in group}) == 1 for group in self._groups)",
        "return True",
        "tests/stores/test_runs.py::"
        "test_a_run_that_was_stopped_in_its_warmup_goes_on_likewise[captured]",
    ),
    Fault(
        "rates-of-a-store-are-those-of-the-warmup",
        "pyro_fnbg.stores.reports",
        "acceptance_rates=one.state.draw_tally",
        "acceptance_rates=one.state.warmup_tally",
        "tests/stores/test_contents.py::test_chain_stats_and_data_are_those_of_the_run[vectorized]",
    ),
    Fault(
        "predictions-of-all-chains-in-one-place",
        "pyro_fnbg.stores.predictions",
        "array[place, start:stop] = found",
        "array[0, start:stop] = found",
        "tests/stores/test_predictions.py::test_they_are_those_of_the_draws_read_piece_by_piece",
    ),
    Fault(
        "some-draws-are-shown-as-others",
        "pyro_fnbg.command_line.quantities",
        "np.arange(every - 1, num_draws, every)",
        "np.arange(0, num_draws, every)[: num_draws // every]",
        "tests/command_line/test_quantities.py::test_each_is_the_last_of_so_many_draws[39-2]",
    ),
    Fault(
        "noise-of-skipped-sweeps-not-skipped",
        "pyro_fnbg.core.noise",
        "rng.standard_normal((skipped, num_params))",
        "rng.standard_normal((0, num_params))",
        "tests/core/test_noise.py::test_noise_does_not_depend_on_how_many_sweeps_are_asked_for",
    ),
    Fault(
        "batches-of-skipped-sweeps-not-skipped",
        "pyro_fnbg.core.batches",
        "group[1][skipped : skipped + taken]",
        "group[1][:taken]",
        "tests/core/test_batches.py::test_rows_of_many_sweeps_are_those_of_one_at_a_time",
    ),
    Fault(
        "first-sweep-of-a-call-goes-on",
        "pyro_fnbg.engines.base",
        "position=record.positions[-1]",
        "position=record.positions[0]",
        "tests/engines/test_base.py::test_a_chain_goes_on_from_the_last_sweep",
    ),
    Fault(
        "scales-that-do-not-settle",
        "pyro_fnbg.core.tuning",
        "np.minimum(numbers**-GAIN_DECAY, SETTLING / numbers)",
        "numbers**-GAIN_DECAY",
        "tests/core/test_tuning.py::"
        "test_a_scale_settles_where_the_mean_acceptance_over_slow_changes_is_its_aim",
    ),
    Fault(
        "rates-far-above-their-aim-are-not-off-it",
        "pyro_fnbg.chains.report",
        "(rates > (1 + aims) / 2)",
        "(rates > 1 + aims / 2)",
        "tests/chains/test_report.py::"
        "test_rates_half_way_from_the_aim_to_nothing_or_all_are_off_it[rates2-is_off2]",
    ),
    Fault(
        "tuning-begins-anew-with-every-call",
        "pyro_fnbg.engines.base",
        "gains(first, count) if first",
        "gains(0, count) if first",
        "tests/engines/test_base.py::test_sweeps_do_not_depend_on_how_many_are_asked_for[batches-fused]",
    ),
    Fault(
        "pieces-cross-the-end-of-the-warmup",
        "pyro_fnbg.chains.pace",
        "return min(self._sweeps, problem.warmup_steps - chain.sweeps)",
        "return self._sweeps",
        "tests/chains/test_running.py::"
        "test_pieces_double_within_their_bounds_and_end_with_the_warmup[fused]",
    ),
    Fault(
        "changed-values-ignored-by-draws-made-ahead",
        "pyro_fnbg.kernel",
        "ahead is not None and ahead.led_to(params)",
        "ahead is not None",
        "tests/stock/test_ahead.py::"
        "test_values_that_were_changed_between_calls_are_where_the_chain_goes_on[in place]",
    ),
    Fault(
        "draws-made-ahead-counted-twice",
        "pyro_fnbg.stock.ahead",
        "advance(self.problem, self.before, self.handed_out",
        "advance(self.problem, self.after, self.handed_out",
        "tests/stock/test_ahead.py::"
        "test_reports_in_the_middle_of_a_chunk_count_the_draws_handed_out[1-fused]",
    ),
]

_IN_CORE = [
    *_in_core(
        "ratio-sign",
        "step",
        "tiled_sum(log_terms - current_log_terms)",
        "tiled_sum(current_log_terms - log_terms)",
        _REVERSIBLE,
        _REVERSIBLE,
    ),
    *(
        Fault(
            f"no-revert-{engine}",
            "pyro_fnbg.core.step",
            "return candidate if accepted else state,",
            "return candidate,",
            test,
            engine,
        )
        for engine, test in (("trace", _NO_TRACE.format("trace")), ("captured", _CAPTURED))
    ),
    _in_feedforward(
        "no-revert", "_select(accepted, candidate, state)", "candidate", _BIT_BY_BIT, "core.step"
    ),
    *_in_core(
        "stale-proposal",
        "moves.base",
        "return block_step(state, propose(state, block), log_u, known.correction_of(block))",
        "self.last = propose(self.last.candidate if block else state, block)\n"
        "        return block_step(state, self.last, log_u, known.correction_of(block))",
        _REVERSIBLE,
        _BIT_BY_BIT,
    ),
    *_in_core(
        "always-accept",
        "step",
        "accepted = log_u < log_ratio",
        "accepted = log_ratio > -math.inf",
        _REVERSIBLE,
        _BIT_BY_BIT,
    ),
    *_in_core(
        "tuning-away-from-the-target",
        "moves.walk",
        "adapt(state.scales, accept_probs, self.targets, gain)",
        "adapt(state.scales, self.targets, accept_probs, gain)",
        _TUNING,
        _TUNING,
    ),
    Fault(
        "correction-of-the-wrong-sign",
        "pyro_fnbg.core.step",
        "log_ratio = log_ratio + log_correction",
        "log_ratio = log_ratio - log_correction",
        "tests/core/test_step.py::test_a_proposal_that_is_not_symmetric_is_corrected",
    ),
    Fault(
        "scale-of-another-block",
        "pyro_fnbg.core.moves.base",
        "self.owners = torch.searchsorted(blocks, owners)",
        "self.owners = owners % len(blocks)",
        "tests/core/test_moves.py::test_the_walk_of_some_blocks_has_their_coordinates_in_order",
    ),
    Fault(
        "noise-of-another-moves-blocks",
        "pyro_fnbg.core.moves.joint",
        "position[..., own], z[..., own])",
        "position[..., own], z[..., : len(own)])",
        "tests/core/test_moves.py::"
        "test_walks_side_by_side_are_one_walk_over_all_blocks_bit_for_bit[chains0-cut1]",
    ),
    Fault(
        "correction-of-another-moves-blocks",
        "pyro_fnbg.core.moves.joint",
        "corrections[..., move.blocks] = part.log_corrections",
        "corrections[..., : len(move.blocks)] = part.log_corrections",
        "tests/core/test_moves.py::test_moves_of_two_kinds_each_have_their_own_part",
    ),
    Fault(
        "moves-learn-from-each-others-blocks",
        "pyro_fnbg.core.moves.joint",
        "accept_probs[..., move.blocks], gain)",
        "accept_probs[..., : len(move.blocks)], gain)",
        "tests/core/test_moves.py::"
        "test_walks_side_by_side_are_one_walk_over_all_blocks_bit_for_bit[chains0-cut1]",
    ),
    Fault(
        "scales-of-the-first-sweeps-in-a-later-part-of-a-record",
        "pyro_fnbg.engines.base",
        "at(self.adaptation, slice(first, stop))",
        "at(self.adaptation, slice(0, stop - first))",
        "tests/engines/test_base.py::test_a_record_taken_in_pieces_leads_where_the_whole_does[fused]",
    ),
    Fault(
        "batches-of-one-chain-for-all",
        "pyro_fnbg.core.batches",
        "self._groups.get(key)",
        "next(iter(self._groups.values()), None)",
        "tests/core/test_batches.py::test_chains_that_take_turns_get_the_batches_of_each_alone",
    ),
]

_IN_TRACE = [
    _in_trace("stale-likelihood", "core.step", _PROPOSE, _PROPOSE_STALE, _REVERSIBLE),
    _in_trace(
        "current-state-not-re-evaluated",
        "engines.trace",
        "sweep(position, density, step, num_blocks)",
        "sweep(position, (lambda p: states[-1]) if states else density, step, num_blocks)",
        _NEW_BATCH,
    ),
    _in_trace(
        "wrong-rows",
        "model.density",
        "self.site_terms(position, rows).values()",
        "self.site_terms(position, rows if rows is None else torch.randperm("
        "self._plan.num_rows)[: len(rows)]).values()",
        "tests/engines/test_every_engine.py::test_one_batch_serves_all_blocks_of_a_sweep",
    ),
    _in_trace(
        "likelihood-factor-dropped",
        "model.density",
        "plan.factor * plan.batch_size / plan.num_rows",
        "plan.batch_size / plan.num_rows",
        _INVARIANT,
    ),
    _in_trace(
        "prior-scaled-with-the-likelihood",
        "model.density",
        'if message["is_observed"] and any(',
        'if message["name"] or any(',
        _INVARIANT.replace("full", "batch"),
    ),
    _in_trace(
        "prior-dropped",
        "model.density",
        'if message["mask"] is False or',
        'if message["mask"] is False or not message["is_observed"] or',
        _REVERSIBLE,
    ),
    _in_trace(
        "jacobian-dropped",
        "model.density",
        "terms = scorer.log_probs | jacobians",
        "terms = scorer.log_probs",
        "tests/model/test_density.py::test_a_change_of_variables_integrates_to_one",
    ),
    _in_trace(
        "impossible-candidate-taken-for-the-best",
        "model.density",
        "term.new_tensor(math.nan)",
        "term.new_tensor(0.0)",
        "tests/field/test_field_impossible.py::"
        "test_a_candidate_at_which_the_model_cannot_be_evaluated_has_probability_zero[cholesky-ours]",
    ),
    _in_trace(
        "noise-shared-between-chains",
        "engines.base",
        "self.z[chain]",
        "self.z[0]",
        _SWEEPS.format("feedforward", "deep"),
    ),
    _in_trace(
        "tuning-by-the-gain-of-another-sweep",
        "engines.trace",
        "gains[number]",
        "gains[0]",
        _TUNING,
    ),
]

_IN_CAPTURED = [
    _in_captured(
        "terms-downstream-forgotten",
        "engines.captured.parts",
        "for node in written if node in self._terms)",
        "for node in written if node in self._terms and self._sites[node] <= group)",
        _CAPTURED,
    ),
    _in_captured(
        "kept-values-of-before",
        "engines.captured.engine",
        "kept[number] = value",
        "kept[number] = value if number in part.terms else kept[number]",
        _CAPTURED,
    ),
    _in_captured(
        "captured-on-the-batch-of-the-comparison",
        "chains.setup",
        "(rows + 1) % plan.num_rows",
        "rows",
        "tests/engines/test_captured.py::test_rows_that_are_constants_are_found_out",
    ),
    _in_compiled("outputs-in-another-order", "in function(*given)]", "in function(*given)][::-1]"),
    _in_compiled(
        "compiled-for-other-strides",
        "[value.contiguous() for value in values]",
        "list(values)",
    ),
    _in_captured(
        "sizes-of-one-batch-for-all",
        "graphs.capture",
        "if varying:",
        "if None:",
        "tests/engines/test_captured.py::test_what_cannot_be_captured_goes_to_trace_with_the_reason"
        "[selects rows]",
    ),
    _in_captured(
        "current-state-not-re-evaluated",
        "engines.captured.engine",
        "sweep(position, evaluate, step, len(self._blocks))",
        "sweep(position, (lambda _: state) if found else evaluate, step, len(self._blocks))",
        _NEW_BATCH,
    ),
    _in_captured(
        "last-batch-kept",
        "engines.captured.engine",
        "if state is not None and rows is None:",
        "if state is not None:",
        "tests/engines/test_captured.py::test_sweeps_are_those_of_trace[by hand-7-False]",
    ),
    _in_captured(
        "wrong-rows",
        "graphs.capture",
        "None if rows is None else given[-1])",
        "None if rows is None else given[-1][:1].expand_as(given[-1]))",
        _CAPTURED,
    ),
    _in_captured(
        "writing-in-place-kept",
        "graphs.capture",
        "if any(map(_writes, graph.graph.nodes)):",
        "if False:",
        "tests/engines/test_captured.py::test_sweeps_are_those_of_trace[recurrent-None-False]",
    ),
    _in_captured(
        "likelihood-factor-dropped",
        "model.density",
        "plan.factor * plan.batch_size / plan.num_rows",
        "plan.batch_size / plan.num_rows",
        _INVARIANT,
    ),
    _in_captured(
        "prior-scaled-with-the-likelihood",
        "model.density",
        'if message["is_observed"] and any(',
        'if message["name"] or any(',
        _INVARIANT.replace("full", "batch"),
    ),
    _in_captured(
        "prior-dropped",
        "model.density",
        'if message["mask"] is False or',
        'if message["mask"] is False or not message["is_observed"] or',
        _REVERSIBLE,
    ),
    _in_captured(
        "jacobian-dropped",
        "model.density",
        "terms = scorer.log_probs | jacobians",
        "terms = scorer.log_probs",
        "tests/model/test_density.py::test_a_change_of_variables_integrates_to_one",
    ),
    _in_captured(
        "noise-shared-between-chains",
        "engines.base",
        "self.z[chain]",
        "self.z[0]",
        "tests/chains/test_running.py::test_a_chain_beside_others_is_the_chain_alone[captured]",
    ),
    _in_captured(
        "an-impossible-chain-takes-others-along",
        "engines.captured.engine",
        "value[chain].expand_as(value)",
        "value[0].expand_as(value)",
        "tests/engines/test_captured.py::"
        "test_impossible_candidates_are_rejected_chain_by_chain[singular_values-4]",
    ),
    _in_captured(
        "factorisations-that-fail-go-unnoticed",
        "graphs.capture",
        "    _mark_failures(graph)\n",
        "",
        "tests/engines/test_captured.py::"
        "test_impossible_candidates_are_rejected_chain_by_chain[uses_a_factor-1]",
    ),
    _in_captured(
        "tuning-by-the-gain-of-another-sweep",
        "engines.captured.engine",
        "gains[number]",
        "gains[0]",
        _TUNING,
    ),
    _in_captured(
        "other-batches-rows-kept",
        "engines.captured.engine",
        "inputs.rows.select(dim, number)",
        "inputs.rows.select(dim, 0)",
        _NEW_BATCH,
    ),
]

_IN_ANNEALING = [
    Fault(
        "a-fall-taken-for-a-step",
        "pyro_fnbg.fitting.annealing",
        "(variances <= FALL)",
        "torch.isfinite(variances)",
        "tests/fitting/test_annealing.py::test_no_chain_falls_where_numbers_have_no_smaller_steps",
    ),
    Fault(
        "melted-chains-left-where-they-are",
        "pyro_fnbg.fitting.annealing",
        "if step in (round(COOLING_FROM * num_steps), num_steps):",
        "if False:",
        "tests/fitting/test_annealing.py::"
        "test_a_chain_that_has_melted_is_put_back_before_it_cools_and_at_the_end",
    ),
]

_IN_RECOGNITION = [
    Fault(
        f"{name}-in-recognition",
        f"pyro_fnbg.{module}",
        old,
        new,
        f"tests/engines/test_networks_found.py::{test}",
    )
    for name, module, old, new, test in (
        (
            "layers-below-seen-again",
            "graphs.layers",
            "if values.layer != len(self.layers) or not",
            "if not",
            "test_what_is_no_network_is_not_taken_for_one[sees_the_layer_below_again]",
        ),
        (
            "values-before-an-activation-used",
            "graphs.layers",
            " or not self.layers[-1].is_state_of(values):",
            ":",
            "test_what_is_no_network_is_not_taken_for_one[before_and_after_its_activation]",
        ),
        (
            "biases-of-rows-taken-for-those-of-nodes",
            "graphs.layers",
            "not torch.equal(by_node[nodes], spread) or",
            "",
            "test_what_is_no_network_is_not_taken_for_one[biases_of_rows]",
        ),
        (
            "sums-over-rows-taken-for-those-over-classes",
            "graphs.layers",
            "and dims in ((1,), (-1,))",
            "",
            "test_what_is_no_network_is_not_taken_for_one[shares_over_rows]",
        ),
        (
            "weights-made-of-sites",
            "graphs.layers",
            "if weights.power:",
            "if False:",
            "test_what_is_no_network_is_not_taken_for_one[weights_made_of_sites]",
        ),
        (
            "sites-that-nothing-sees",
            "engines.captured.recognition",
            "if not torch.equal(torch.cat(used).sort().values, every):",
            "if False:",
            "test_what_is_no_network_is_not_taken_for_one[unused_site]",
        ),
        (
            "scale-of-a-row-for-all",
            "graphs.networks",
            "if not bool((numbers == first).all()):",
            "if False:",
            "test_what_is_no_network_is_not_taken_for_one[scale_of_each_response]",
        ),
        (
            "priors-that-depend-on-weights",
            "engines.captured.recognition",
            "        if more:",
            "        if False:",
            "test_what_is_no_network_is_not_taken_for_one"
            "[prior_depends_on_a_weight_where_that_is_large]",
        ),
        (
            "classes-of-ones-own",
            "graphs.networks",
            "KINDS.get(observed.kind)",
            "next((KINDS[one] for one in KINDS if issubclass(observed.kind, one)), None)",
            "test_what_is_no_network_is_not_taken_for_one[scored_by_a_class_of_ones_own]",
        ),
        (
            "a-least-rate",
            "graphs.networks",
            "or outputs.added or",
            "or",
            "test_what_is_no_network_is_not_taken_for_one[a_least_rate]",
        ),
        (
            "outputs-left-out",
            "graphs.networks",
            "if not torch.equal(outputs.codes.reshape(-1), codes.reshape(-1)):",
            "if False:",
            "test_what_is_no_network_is_not_taken_for_one[other_order]",
        ),
        (
            "blocks-without-their-biases",
            "engines.network",
            "own = torch.cat([own, biases.coordinates(fan_out).unsqueeze(-1)], -1)",
            "pass",
            "test_blocks_are_those_of_nodes[by hand]",
        ),
    )
]

_IN_FEEDFORWARD = [
    _in_feedforward(
        "current-state-not-re-evaluated",
        "sweep(positions, evaluate, step,",
        "sweep(positions, (lambda p: state) if results else evaluate, step,",
        _NEW_BATCH,
    ),
    _in_feedforward(
        "wrong-rows",
        "self._inputs[rows], self._labels[rows].mT",
        "self._inputs[rows], self._labels[rows - rows.min()].mT",
        "classes",
        "network_density",
    ),
    _in_feedforward(
        "likelihood-factor-dropped",
        "(terms * self._network.factor)",
        "terms",
        "scale",
        "network_density",
    ),
    _in_feedforward(
        "prior-scaled-with-the-likelihood",
        "terms = self._prior_terms(position)",
        "terms = self._prior_terms(position) * self._network.factor",
        "scale",
        "network_density",
    ),
    _in_feedforward(
        "prior-dropped",
        "torch.cat([after, candidate.log_lik], -1)",
        "torch.cat([before, candidate.log_lik], -1)",
        "deep",
    ),
    _in_feedforward(
        "stale-scale-of-priors",
        "if values is None and block not in self._shared_priors:",
        "if values is None:",
        "scales of priors",
    ),
    _in_feedforward("jacobian-dropped", " + jacobian.double()", "", "scale", "network_density"),
    _in_feedforward(
        "noise-shared-between-chains",
        "positions, z[:, number])",
        "positions, z[:1, number].expand_as(z[:, number]))",
        "deep",
    ),
    _in_feedforward(
        "tuning-by-the-gain-of-another-sweep",
        "gains[number]",
        "gains[0]",
        _TUNING,
    ),
    _in_feedforward(
        "wrong-column", "layer + 1)[..., node : node + 1]", "layer + 1)[..., :1]", "classes"
    ),
    _in_feedforward(
        "rank-one-update-of-the-wrong-sign",
        "activation(moved) - activation(row)",
        "activation(row) - activation(moved)",
        "classes",
    ),
    _in_feedforward(
        "layers-above-the-next-not-renewed",
        "return (*pre, torch.addcmul(above[0], outgoing, activation(moved) - activation(row)))",
        "return (*pre, torch.addcmul(above[0], outgoing, activation(moved) - activation(row)), "
        "*above[1:])",
        "classes",
    ),
    _in_feedforward(
        "wrong-outgoing-weights",
        "outgoing = self._density.weight(state.position, layer + 1)",
        "outgoing = self._density.weight(state.position - state.position[:1], layer + 1)",
        "deep",
    ),
    _in_feedforward(
        "bias-left-out",
        "if node.bias is not None:",
        "if node.bias is not None and layer == 1:",
        "deep",
    ),
]

_IN_FUSED = [
    _in_fused(
        "ratio-sign",
        "elementwise",
        "np.float64(new[r]) - np.float64(old[index[r]])",
        "np.float64(old[index[r]]) - np.float64(new[r])",
        "deep",
    ),
    # Restored is the position where several nodes are displaced, and what is kept where one is
    _in_fused(
        "no-revert",
        "proposals",
        "position[net.coordinates[c]] = work.kept[c]",
        "position[net.coordinates[c]] = work.candidate[c]",
        "layers",
    ),
    _in_fused("rejected-nodes-kept", "compiled", _ACCEPT, _ACCEPT_ALL_NODES, "deep"),
    _in_fused("stale-proposal", "compiled", _ACCEPT, _ACCEPT_ALL_POSITIONS, "classes"),
    _in_fused(
        "always-accept",
        "compiled",
        "accepted = log_u < log_ratio",
        "accepted = log_ratio > -math.inf",
        "deep",
    ),
    _in_fused(
        "current-state-not-re-evaluated",
        "layers",
        "if chunk == 0:",
        "if chunk == 0 and work.state[3] == 0:",
        "classes",
    ),
    _in_fused(
        "labels-of-the-last-batch",
        "compiled",
        "work.labels[k, r] = data.labels[rows[min(r, work.num_rows - 1)], k]",
        "work.labels[k, r] = work.labels[k, r] if work.state[IS_FINITE] "
        "else data.labels[rows[min(r, work.num_rows - 1)], k]",
        "classes",
    ),
    _in_fused(
        "wrong-rows",
        "compiled",
        "data.labels[rows[min(r, work.num_rows - 1)], k]",
        "data.labels[min(r, work.num_rows - 1), k]",
        "classes",
    ),
    _in_fused(
        "labels-of-rows-that-did-not-move",
        "proposals",
        "work.labels[k, work.moved[start + r]]",
        "work.labels[k, start + r]",
        "saturated",
    ),
    _in_fused(
        "likelihood-factor-dropped",
        "layers",
        "        net.factor,\n",
        "        1.0,\n",
        "scale",
    ),
    _in_fused(
        "rows-that-fill-up-counted",
        "proposals",
        "count, piece, pieces = work.num_rows, 0, 0",
        "count, piece, pieces = len(work.log_lik), 0, 0",
        "layers",
    ),
    _in_fused(
        "prior-scaled-with-the-likelihood",
        "memory",
        "prior_rates=",
        "prior_rates=network.factor * ",
        "scale",
    ),
    _in_fused(
        "prior-dropped",
        "priors",
        "score: float = -rate * error * error",
        "score: float = 0.0 * error",
        "deep",
    ),
    _in_fused(
        "scale-of-a-prior-dropped",
        "priors",
        "score - log_scale",
        "score - 0.0",
        "scales of priors",
    ),
    _in_fused(
        "stale-scale-of-priors",
        "compiled",
        "is_shared = net.term_starts[block] < ",
        "is_shared = net.term_starts[block] < 0 * ",
        "scales of priors",
    ),
    _in_fused("sum-of-squares-not-halved", "compiled", "0.5 * squares", "squares", "variances"),
    _in_fused(
        "gamma-for-its-inverse",
        "moves",
        "= move.minus_log_gammas",
        "= -move.minus_log_gammas",
        "variances",
    ),
    _in_fused(
        "laplace-squared", "priors", "score = -rate * abs(error)", "score *= rate", "laplace"
    ),
    _in_fused(
        "degrees-of-freedom-off-by-one",
        "memory",
        "(0.5 * (priors.degrees_of_freedom + 1))",
        "(0.5 * priors.degrees_of_freedom)",
        "student priors",
    ),
    _in_fused("prior-mean-dropped", "priors", "value - net.prior_locs[at]", "value", "layers"),
    Fault(
        "jacobian-dropped-fused",
        "pyro_fnbg.model.positive",
        "c[..., 0] = 1.0  # the Jacobian",
        "c[..., 0] = 0.0",
        _SWEEPS.format("fused", "scale"),
        "fused",
    ),
    _in_fused("noise-shared-between-chains", "engine", "z[chain]", "z[0]", "deep"),
    _in_fused(
        "tuning-away-from-the-target",
        "moves",
        "(prob - noise.targets[block])",
        "(noise.targets[block] - prob)",
        _TUNING.format("fused"),
    ),
    _in_fused(
        "tuning-by-the-gain-of-another-sweep",
        "compiled",
        "log_ratio, noise.gains[k])",
        "log_ratio, noise.gains[0])",
        _TUNING.format("fused"),
    ),
    _in_fused(
        "own-node-kept-on-moved-rows-alone",
        "proposals",
        "    for r in range(num_rows):\n        work.pre[unit, r] = work.new_pre[r]\n",
        "    for r in range(count):\n"
        "        work.pre[unit, work.moved[r]] = work.new_pre[work.moved[r]]\n",
        "saturated",
    ),
    _in_fused(
        "wide-rows-not-laid-down",
        "proposals",
        "                pre[r] = work.above[r, k]\n",
        "                pass\n",
        "wide",
    ),
    _in_fused(
        "wide-rows-not-kept",
        "proposals",
        "work.outgoing, work.above, row, width)",
        "work.outgoing, work.new_above, 0, width)",
        "wide",
    ),
    _in_fused(
        "least-change-of-moved-rows-not-kept",
        "proposals",
        "work.least[work.moved[r]] = work.new_least[r]",
        "work.least[work.moved[r]] = 1e12 * work.new_least[r]",
        "wide saturated",
    ),
    _in_fused(
        "stale-activations",
        "proposals",
        "    work.state[ACT] = min(work.state[ACT], layer)\n",
        "",
        "up and down",
    ),
    _in_fused(
        "stale-pre-activations",
        "proposals",
        "    work.state[PRE] = min(work.state[PRE], layer + 1)\n",
        "",
        "up and down",
    ),
    _in_fused(
        "stale-layers-after-several-nodes",
        "proposals",
        "    work.state[PRE] = min(work.state[PRE], max(layer - 1, 1))\n",
        "",
        "mixed",
    ),
    _in_fused(
        "rows-that-moved-left-out",
        "proposals",
        "<= work.least[r] else 1",
        "<= 1e-3 else 1",
        "classes",
    ),
    _in_fused(
        "work-memory-shared-between-chains",
        "engine",
        "self._kept.pop()",
        "self._kept[0]",
        "tests/test_seeded.py::test_fused_calls_work_in_memory_of_their_own",
    ),
    # Of threads that share the rows of a chain
    _in_fused(
        "sums-of-one-thread-alone",
        "sharing",
        "range(work.sums.shape[1])",
        "range(1)",
        _SHARED + "test_threads_take_the_decisions_of_the_trace_engine[classes-2]",
    ),
    _in_fused(
        "sums-of-the-last-turn",
        "sharing",
        "total += work.sums[turn, segment]",
        "total += work.sums[1 - turn, segment]",
        _SHARED + "test_threads_take_the_decisions_of_the_trace_engine[classes-1]",
    ),
    _in_fused(
        "rows-of-one-segment-counted-in-another",
        "sharing",
        "work.segment_ends[segment])\n        total",
        "work.segment_ends[0])\n        total",
        _SHARED + "test_results_do_not_depend_on_the_number_of_threads[classes]",
    ),
    _in_fused(
        "threads-see-the-same-rows",
        "compiled",
        "[work.first_row : work.first_row + work.num_rows]",
        "[: work.num_rows]",
        _SHARED + "test_threads_take_the_decisions_of_the_trace_engine[classes-2]",
    ),
    _in_fused(
        "scales-tuned-by-every-thread",
        "engine",
        "noise._replace(scales=_apart(noise.scales))",
        "noise",
        _SHARED + "test_results_do_not_depend_on_the_number_of_threads[classes]",
    ),
    _in_fused(
        "moved-rows-of-one-thread-alone",
        "engine",
        "results.moved_rows[:] += found.moved_rows",
        "pass",
        _SHARED + "test_results_do_not_depend_on_the_number_of_threads[classes]",
    ),
]

# Mistakes in pCN; two engines share its displacement and its correction
_PCN = "tests/exactness/test_pcn_on_engines.py::"
_JUDGED = _PCN + "test_the_likelihood_alone_decides[{}]"
_SMALL = "tests/core/test_pcn.py::test_small_steps_are_pulled_to_the_mean_without_cancellation"
_MIXED = "tests/exactness/test_moves_of_three_kinds.py::test_three_kinds_are_"
_IN_PCN = [
    *(
        Fault(
            f"pcn-lets-the-prior-decide-too-{engine}",
            "pyro_fnbg.core.moves.pcn",
            "nothing.index_add(-1, self.owners, terms)",
            "nothing",
            _JUDGED.format(engine),
            engine,
        )
        for engine in ("trace", "feedforward")
    ),
    _in_fused(
        "pcn-lets-the-prior-decide-too",
        "compiled",
        "if not (kind == Kind.PCN or is_shared):",
        "if not is_shared:",
        _JUDGED.format("fused"),
    ),
    Fault(
        "pcn-pulls-by-the-square-alone",
        "pyro_fnbg.core.moves.pcn",
        "pull = (odds * rho).square() / (1 + rho)",
        "pull = (odds * rho).square()",
        _SMALL,
    ),
    _in_fused(
        "pcn-pulls-to-zero",
        "moves",
        "np.float64(position[at]) - net.prior_locs[at]",
        "np.float64(position[at])",
        _PCN + "test_fast_engines_take_the_decisions_of_the_trace_engine[classes-fused]",
    ),
    _in_fused(
        "pcn-steps-by-the-walks-scale",
        "moves",
        "step = scale * moves.prior_scales[at] * noise.z[k, at] - pull * away",
        "step = noise.scales[block] * noise.z[k, at] - pull * away",
        _PCN + "test_fast_engines_take_the_decisions_of_the_trace_engine[mixed-fused]",
    ),
    # Two that show where moves of different kinds are mixed
    _in_fused(
        "learnt-by-another-moves-blocks",
        "moves",
        "ScaleState(scales[..., move.blocks])",
        "ScaleState(scales[..., : len(move.blocks)])",
        _MIXED + "decided_as_by_the_trace_engine[fused]",
    ),
    _in_feedforward(
        "drawn-where-the-sweep-began",
        "own, position = self.conditionals[block], state[0]",
        "own = self.conditionals[block]\n"
        "        self.first = state[0] if not hasattr(self, 'first') else self.first\n"
        "        position = self.first",
        _MIXED + "each_judged_as_by_the_model[feedforward]",
        "core.moves.conjugate",
    ),
]

# Mistakes in the likelihoods of numbers
_BY_HAND = "tests/networks/test_mlp.py::test_scales_from_the_network_by_hand"
_DIGITS = "tests/engines/test_fused.py::test_"
_IN_LIKELIHOODS = [
    Fault(
        "scales-are-exponentials",
        "pyro_fnbg.networks.likelihoods",
        "least - logsigmoid(-outputs)",
        "least + outputs.exp()",
        _BY_HAND + "[normal-1]",
    ),
    Fault(
        "scales-before-locations",
        "pyro_fnbg.networks.likelihoods",
        "locations, others = outputs.split(",
        "others, locations = outputs.split(",
        _BY_HAND + "[student-3]",
    ),
    Fault(
        "degrees-of-freedom-left-out-trace",
        "pyro_fnbg.networks.likelihoods",
        "dist.StudentT(self.degrees_of_freedom,",
        "dist.StudentT(DEGREES_OF_FREEDOM,",
        "tests/networks/test_mlp.py::test_likelihood_by_hand[student-sigmoid]",
        "trace",
    ),
    Fault(
        "tails-of-student-too-heavy-feedforward",
        "pyro_fnbg.networks.likelihoods",
        "0.5 * (degrees + 1) * tails",
        "0.5 * degrees * tails",
        _SWEEPS.format("feedforward", "student"),
        "feedforward",
    ),
    _in_feedforward(
        "counts-of-constant-probability",
        "at_best.expand(len(outputs), -1, -1)",
        "0 * at_best.expand(len(outputs), -1, -1)",
        "counts",
        "network_density",
    ),
    Fault(
        "counts-of-zero-without-their-rate",
        "pyro_fnbg.networks.counts",
        "(away < NEAR) & (counts > 0)",
        "away < NEAR",
        "tests/networks/test_counts.py::test_log_probabilities_are_those_of_poisson[-0.3]",
    ),
    _in_fused(
        "scales-of-the-first-response",
        "likelihoods",
        "outputs[columns + k, :n]",
        "outputs[columns, :n]",
        "scales",
    ),
    _in_fused(
        "normalizer-of-a-row-dropped",
        "likelihoods",
        "target[r] += log(spread)",
        "target[r] += zero",
        "scales",
    ),
    _in_fused(
        "no-least-scale",
        "likelihoods",
        "spread = least + (above",
        "spread = zero + (above",
        _DIGITS + "scales_from_the_network_have_all_digits_however_small_they_are[float64]",
    ),
    _in_fused(
        "degrees-of-freedom-left-out",
        "likelihoods",
        "real(1.0 / head.degrees_of_freedom)",
        "real(0.25)",
        "student",
    ),
    _in_fused(
        "counts-of-zero-without-their-rate",
        "likelihoods",
        "(away < one) & (count > zero)",
        "away < one",
        "counts",
    ),
    _in_fused(
        "logarithm-of-another-count",
        "likelihoods",
        "logs = labels[columns + k,",
        "logs = labels[columns,",
        "counts",
    ),
    Fault(
        "rounding-of-parameters-not-allowed-for",
        "pyro_fnbg.engines.comparison",
        "allowed += ROUNDINGS * sum(",
        "allowed += 0 * sum(",
        "tests/engines/test_choice.py::"
        "test_what_rounding_of_the_parameters_does_is_no_disagreement[scales-feedforward-dtype0]",
    ),
    Fault(
        "counts-one-too-large",
        "pyro_fnbg.prediction.mixtures",
        "below >= level",
        "below > 1.001 * level",
        "tests/prediction/test_mixtures.py::"
        "test_quantiles_of_counts_are_the_smallest_that_reach_the_level[0.5]",
    ),
    Fault(
        "tails-of-another-part",
        "pyro_fnbg.prediction.mixtures",
        "stdtr(degrees[:, columns].numpy()",
        "stdtr(degrees[:1, columns].numpy()",
        "tests/prediction/test_mixtures.py::"
        "test_student_mixtures_have_the_level_below_their_quantiles[degrees7]",
    ),
    Fault(
        "other-tails-with-the-same-moments-not-seen",
        "pyro_fnbg.prediction.responses",
        "one.kind is StudentT:",
        "one.kind is None:",
        "tests/prediction/test_responses.py::"
        "test_a_wrong_statement_is_found_at_any_size_of_outputs[<lambda>-student1-0.0]",
    ),
]

# Mistakes in what is computed from predictions
_IN_PREDICTIONS = [
    Fault(
        "gaussian-without-the-networks-variance",
        "pyro_fnbg.prediction.scores",
        "prediction.scale.detach()",
        "prediction.data_variance.sqrt().detach()",
        "tests/prediction/test_scores.py::test_scores_of_numbers_by_hand[three numbers]",
    ),
    Fault(
        "no-warning-beside-scores-of-tempered-chains",
        "pyro_fnbg.prediction.scores",
        "if self.target not in (None, EXACT_TARGET):",
        "if self.target is None:",
        "tests/prediction/test_scores.py::test_scores_say_what_the_chain_targeted",
    ),
    Fault(
        "means-of-parts-do-not-differ",
        "pyro_fnbg.prediction.totals",
        "+ step.square() * (self.num_draws",
        "+ 0 * step.square() * (self.num_draws",
        "tests/prediction/test_predict.py::test_the_memory_limit_changes_no_result",
    ),
    Fault(
        "density-summed-over-draws",
        "pyro_fnbg.prediction.totals",
        "(log_density - torch.tensor(self.num_draws).log())",
        "(log_density + 0 * torch.tensor(self.num_draws).log())",
        "tests/prediction/test_predict.py::test_moments_and_densities_are_those_of_a_loop",
    ),
    Fault(
        "all-chains-begin-with-the-first",
        "pyro_fnbg.prediction.course",
        "slice(chain * of_chain + a, chain * of_chain + b)",
        "slice(a, b)",
        "tests/prediction/test_predict.py::test_the_course_of_scores_is_that_of_predictions_from_fewer_draws",
    ),
    Fault(
        "weights-in-another-place",
        "pyro_fnbg.prediction.recognition",
        "self.start * step",
        "0",
        "tests/prediction/test_recognition.py::test_models_of_all_kinds_are_recognised[one_vector]",
    ),
    Fault(
        "temperature-upside-down",
        "pyro_fnbg.prediction.outcomes",
        "keepdim=True)) / number",
        "keepdim=True)) * number",
        "tests/prediction/test_temperature.py::test_a_rescaled_prediction",
    ),
    Fault(
        "ties-by-the-order-of-rows",
        "pyro_fnbg.prediction.selection",
        "np.cumsum(np.repeat(means, sizes))",
        "np.cumsum(wrong[np.argsort(groups, kind='stable')])",
        "tests/prediction/test_selection.py::test_ties_count_with_their_mean_whatever_the_order",
    ),
    Fault(
        "draws-kept-from-the-first-chain",
        "pyro_fnbg.prediction.thinning",
        "torch.arange(num_chains).unsqueeze(-1) * of_chain + places",
        "torch.zeros(num_chains, 1).long() + places",
        "tests/prediction/test_thinning.py",
    ),
    Fault(
        "superchains-of-chains-that-agree",
        "pyro_fnbg.results.nested",
        "within_chains + means.var(1, ddof=1)",
        "within_chains",
        "tests/results/test_nested.py::test_by_hand",
    ),
    Fault(
        "flipped-sigmoid-leaves-the-bias-above",
        "pyro_fnbg.networks.canonical",
        'samples[f"{above}.bias"] + moved',
        'samples[f"{above}.bias"]',
        "tests/networks/test_canonical.py::test_the_function_stays",
    ),
]

_IN_FITS = [
    Fault(
        "fits-see-the-rows-that-judge-them",
        "pyro_fnbg.fitting.splits",
        "order[:num_fitted].sort()",
        "order[-num_fitted:].sort()",
        "tests/fitting/test_splits.py::test_batches_and_held_out_rows_are_apart_and_all_rows_are_in_"
        "one_of_them",
    ),
    Fault(
        "batches-of-a-fit-stand-for-themselves",
        "pyro_fnbg.fitting.splits",
        'BatchPlan(plate.name, num_rows, size, "shuffled", num_rows / size)',
        'BatchPlan(plate.name, num_rows, size, "shuffled", 1.0)',
        "tests/fitting/test_splits.py::test_batches_and_held_out_rows_are_apart_and_all_rows_are_in_"
        "one_of_them",
    ),
    Fault(
        "held-out-loss-with-the-prior",
        "pyro_fnbg.fitting.warm_start",
        "for name, term in terms.items() if name in names",
        "for name, term in terms.items()",
        "tests/fitting/test_warm_start.py::test_held_out_loss_is_that_of_rows_that_no_step_saw",
    ),
    Fault(
        "priors-count-as-gradients",
        "pyro_fnbg.fitting.joint",
        "if term not in own",
        "if term",
        "tests/fitting/test_joint.py::test_sites_with_a_gradient_are_those_that_the_rest_of_the_model"
        "_has_one_for",
    ),
    Fault(
        "scales-of-weights-collapse-with-them",
        "pyro_fnbg.fitting.joint",
        "by_any & sites.real_sites",
        "by_any",
        "tests/fitting/test_warm_start.py::test_scale_of_other_sites_does_not_collapse_with_them",
    ),
    Fault(
        "fits-start-at-the-scale-of-the-prior",
        "pyro_fnbg.fitting.random_start",
        "torch.randn_like(value) * math.sqrt(2 / value.shape[1])",
        "value",
        "tests/fitting/test_random_start.py::test_weights_have_the_variance_that_keeps_activations_"
        "in_size",
    ),
    Fault(
        "fit-ends-where-it-ends",
        "pyro_fnbg.fitting.descent",
        "is_better = losses < self._losses",
        "is_better = losses < torch.inf",
        "tests/fitting/test_descent.py::test_best_place_is_that_of_the_held_out_loss",
    ),
    Fault(
        "fit-keeps-what-is-impossible",
        "pyro_fnbg.fitting.descent",
        "torch.where(is_possible, loss, torch.inf)",
        "loss",
        "tests/fitting/test_descent.py::test_place_after_a_step_into_the_impossible_is_not_kept",
    ),
    Fault(
        "sites-without-a-gradient-move",
        "pyro_fnbg.fitting.descent",
        "torch.where(is_fitted, gradient, 0.0)",
        "gradient",
        "tests/fitting/test_descent.py::test_coordinates_that_are_not_fitted_stay",
    ),
]

_IN_REMARKS = [
    Fault(
        "every-site-is-used",
        "pyro_fnbg.engines.influence",
        "if term not in owner or joined & used:",
        "if joined:",
        "tests/engines/test_influence.py::test_unused_sites_are_named_and_no_others",
    ),
    Fault(
        "scales-of-used-sites-are-unused",
        "pyro_fnbg.engines.influence",
        "joined = {*depends, owner[term]} if term in owner else set(depends)",
        "joined = set(depends) - {owner.get(term)}",
        "tests/engines/test_influence.py::test_unused_sites_are_named_and_no_others",
    ),
    Fault(
        "scale-of-a-layer-comes-before-its-blocks",
        "pyro_fnbg.core.blocks",
        "given.get(block.name, given.get(self.layer_label(block)))",
        "given.get(self.layer_label(block), given.get(block.name))",
        "tests/test_kernel.py::test_given_scales_are_kept_without_adaptation",
    ),
    Fault(
        "tuned-chains-are-told-of-untuned-scales",
        "pyro_fnbg.chains.remarks",
        "is_given and problem.tuned_sweeps == 0 and config",
        "is_given and config",
        "tests/chains/test_remarks.py::test_it_is_not_said_where_it_does_not_apply",
    ),
    Fault(
        "what-is-outside-the-plate-goes-unsaid",
        "pyro_fnbg.model.planning",
        "if name not in own)",
        "if name in own)",
        "tests/model/test_planning.py::test_the_target_names_what_is_observed_outside_the_plate",
    ),
]

FAULTS: list[Fault] = [
    *_GENERAL,
    *_IN_DRIVER,
    *_IN_CORE,
    *_IN_TRACE,
    *_IN_CAPTURED,
    *_IN_RECOGNITION,
    *_IN_ANNEALING,
    *_IN_FEEDFORWARD,
    *_IN_FUSED,
    *_IN_PCN,
    *_IN_LIKELIHOODS,
    *_IN_PREDICTIONS,
    *_IN_FITS,
    *_IN_REMARKS,
]
