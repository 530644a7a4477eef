"""Every row of DESIGN.md section 5, typed here a second time, against every checkpoint, objective and conversion."""

from __future__ import annotations

from itertools import product

import pytest

from octavo_runtime.contract.facts import CheckpointFormat
from octavo_runtime.contract.precision import (
    BUNDLED_RUNTIME_WEIGHTS,
    ComputeCapability,
    Conversion,
    KvFormat,
    Objective,
    PrecisionChoice,
    PrecisionRefused,
    PrecisionRequest,
    WeightFormat,
    choose_precision,
)

EVERYTHING = frozenset(WeightFormat)
BF16, FP8, INT4, NVFP4 = WeightFormat.BF16, WeightFormat.FP8, WeightFormat.INT4, WeightFormat.NVFP4
PLAIN = (CheckpointFormat.BF16, CheckpointFormat.FP16, CheckpointFormat.FP32)
QUANTISED = (CheckpointFormat.FP8, CheckpointFormat.INT4, CheckpointFormat.NVFP4)
AUTO = PrecisionRequest()

ROWS: dict[str | None, tuple[str, KvFormat, WeightFormat, WeightFormat]] = {
    # compute capability: generation, KV, weights for latency, weights for throughput
    None: ("CPU", KvFormat.FP8, INT4, INT4),
    "8.0": ("Ampere", KvFormat.FP8, INT4, INT4),
    "8.6": ("Ampere", KvFormat.FP8, INT4, INT4),
    "8.7": ("Ampere", KvFormat.FP8, INT4, INT4),
    "8.9": ("Ada", KvFormat.FP8, FP8, FP8),
    "9.0": ("Hopper", KvFormat.FP8, INT4, FP8),
    "10.0": ("Blackwell", KvFormat.FP8, NVFP4, NVFP4),
    "10.3": ("Blackwell", KvFormat.FP8, NVFP4, NVFP4),
    "12.0": ("Blackwell workstation", KvFormat.FP8, NVFP4, NVFP4),
    "12.1": ("Blackwell workstation", KvFormat.FP8, NVFP4, NVFP4),
    "11.0": ("unrecognised", KvFormat.BF16, BF16, BF16),
    "13.0": ("unrecognised", KvFormat.BF16, BF16, BF16),
    "9.9": ("unrecognised", KvFormat.BF16, BF16, BF16),
}
RUNS_WELL: dict[str | None, set[WeightFormat]] = {
    None: {INT4, BF16},
    "8.0": {INT4, BF16},
    "8.6": {INT4, BF16},
    "8.7": {INT4, BF16},
    "8.9": {INT4, FP8, BF16},
    "9.0": {INT4, FP8, BF16},
    "10.0": {INT4, FP8, NVFP4, BF16},
    "10.3": {INT4, FP8, NVFP4, BF16},
    "12.0": {INT4, FP8, NVFP4, BF16},
    "12.1": {INT4, FP8, NVFP4, BF16},
    "11.0": {BF16},
    "13.0": {BF16},
    "9.9": {BF16},
}
NATIVE: dict[CheckpointFormat, set[str | None]] = {
    CheckpointFormat.FP8: {"8.9", "9.0", "10.0", "10.3", "12.0", "12.1"},
    CheckpointFormat.INT4: set(),
    CheckpointFormat.NVFP4: {"10.0", "10.3", "12.0", "12.1"},
}
OPTIONS = list(product(ROWS, Objective, Conversion))


def _capability(text: str | None) -> ComputeCapability | None:
    return None if text is None else ComputeCapability.parse(text)


def _choose(
    capability: str | None,
    checkpoint: CheckpointFormat,
    request: PrecisionRequest = AUTO,
    supported: frozenset[WeightFormat] = EVERYTHING,
) -> PrecisionChoice:
    return choose_precision(_capability(capability), checkpoint, request, supported)


def _refusal(
    capability: str | None,
    checkpoint: CheckpointFormat,
    request: PrecisionRequest = AUTO,
    supported: frozenset[WeightFormat] = EVERYTHING,
) -> PrecisionRefused:
    with pytest.raises(PrecisionRefused) as refusal:
        _choose(capability, checkpoint, request, supported)
    return refusal.value


@pytest.mark.parametrize("checkpoint", PLAIN)
@pytest.mark.parametrize(("capability", "objective", "conversion"), OPTIONS)
def test_an_unquantised_checkpoint_gets_the_rows_best_format(
    capability: str | None, objective: Objective, conversion: Conversion, checkpoint: CheckpointFormat
) -> None:
    generation, kv, latency, throughput = ROWS[capability]
    choice = _choose(capability, checkpoint, PrecisionRequest(objective=objective, conversion=conversion))

    best = throughput if objective is Objective.THROUGHPUT else latency
    expected = best if conversion is Conversion.ALLOWED else BF16
    assert choice.weights is expected
    assert choice.kv is kv
    assert choice.converted is (expected is not BF16)
    assert choice.recognised is (generation != "unrecognised")
    assert generation in choice.weights_reason


@pytest.mark.parametrize("checkpoint", QUANTISED)
@pytest.mark.parametrize(("capability", "objective", "conversion"), OPTIONS)
def test_a_quantised_checkpoint_keeps_its_format_and_is_called_native_only_where_it_is(
    capability: str | None, objective: Objective, conversion: Conversion, checkpoint: CheckpointFormat
) -> None:
    choice = _choose(capability, checkpoint, PrecisionRequest(objective=objective, conversion=conversion))

    assert choice.weights.value == checkpoint.value
    assert not choice.converted
    assert ("native" in choice.weights_reason) is (capability in NATIVE[checkpoint])


def test_native_nvfp4_says_that_activations_are_four_bits_too() -> None:
    assert "W4A4" in _choose("10.0", CheckpointFormat.NVFP4).weights_reason
    assert "W4A4" not in _choose("9.0", CheckpointFormat.NVFP4).weights_reason


@pytest.mark.parametrize("checkpoint", [*PLAIN, *QUANTISED])
@pytest.mark.parametrize("capability", ["6.1", "7.0", "7.5"])
def test_devices_without_bfloat16_are_refused(capability: str, checkpoint: CheckpointFormat) -> None:
    refusal = _refusal(capability, checkpoint)
    assert refusal.reason == "DeviceTooOld"
    assert capability in refusal.message
    assert "8.0" in refusal.message


@pytest.mark.parametrize("capability", ROWS)
@pytest.mark.parametrize("checkpoint", PLAIN)
def test_the_bundled_runtime_takes_the_best_format_that_it_loads_and_says_what_it_passed_over(
    capability: str | None, checkpoint: CheckpointFormat
) -> None:
    choice = _choose(capability, checkpoint, supported=BUNDLED_RUNTIME_WEIGHTS)
    best = ROWS[capability][2]

    assert choice.weights is (BF16 if best is BF16 else INT4)
    if best not in BUNDLED_RUNTIME_WEIGHTS:
        assert any(p.option == f"weights {best}" and "does not load it" in p.why for p in choice.passed_over)


@pytest.mark.parametrize("checkpoint", [CheckpointFormat.FP8, CheckpointFormat.NVFP4])
def test_a_quantised_checkpoint_that_the_runtime_cannot_load_is_refused(checkpoint: CheckpointFormat) -> None:
    refusal = _refusal("9.0", checkpoint, supported=BUNDLED_RUNTIME_WEIGHTS)
    assert refusal.reason == "WeightsUnsupported"
    assert str(checkpoint) in refusal.message
    assert "INT4" in refusal.message


@pytest.mark.parametrize("capability", ROWS)
@pytest.mark.parametrize("asked", WeightFormat)
@pytest.mark.parametrize("conversion", Conversion)
def test_what_is_asked_for_is_honoured_or_refused_and_never_replaced(
    capability: str | None, asked: WeightFormat, conversion: Conversion
) -> None:
    request = PrecisionRequest(weights=asked, conversion=conversion)
    runs = asked in RUNS_WELL[capability] and (conversion is Conversion.ALLOWED or asked is BF16)
    if not runs:
        refusal = _refusal(capability, CheckpointFormat.BF16, request)
        assert f"precision.weights {asked}" in refusal.message
        assert "possible here: " in refusal.message
        return
    choice = _choose(capability, CheckpointFormat.BF16, request)
    assert choice.weights is asked
    assert choice.converted is (asked is not BF16)


@pytest.mark.parametrize(
    ("capability", "asked"), [("8.0", FP8), ("8.0", NVFP4), ("8.9", NVFP4), ("9.0", NVFP4), ("11.0", INT4), (None, FP8)]
)
def test_formats_that_a_generation_does_not_run_well_are_refused_on_request(
    capability: str | None, asked: WeightFormat
) -> None:
    refusal = _refusal(capability, CheckpointFormat.BF16, PrecisionRequest(weights=asked))
    assert refusal.reason == "WeightsUnsupported"
    assert "does not run well" in refusal.message


def test_conversion_that_is_forbidden_is_named() -> None:
    refusal = _refusal("9.0", CheckpointFormat.BF16, PrecisionRequest(weights=INT4, conversion=Conversion.NEVER))
    assert "precision.conversion is Never" in refusal.message


@pytest.mark.parametrize("checkpoint", QUANTISED)
@pytest.mark.parametrize("asked", WeightFormat)
def test_a_quantised_checkpoint_is_not_requantised(checkpoint: CheckpointFormat, asked: WeightFormat) -> None:
    request = PrecisionRequest(weights=asked)
    if asked.value == checkpoint.value:
        assert _choose("10.0", checkpoint, request).weights is asked
    else:
        refusal = _refusal("10.0", checkpoint, request)
        assert refusal.reason == "WeightsFixedByCheckpoint"
        assert str(asked) in refusal.message
        assert str(checkpoint) in refusal.message


@pytest.mark.parametrize("capability", ROWS)
@pytest.mark.parametrize("asked", KvFormat)
def test_kv_is_honoured_or_refused(capability: str | None, asked: KvFormat) -> None:
    request = PrecisionRequest(kv=asked)
    if asked is KvFormat.FP8 and ROWS[capability][1] is KvFormat.BF16:
        assert _refusal(capability, CheckpointFormat.BF16, request).reason == "KvCacheUnsupported"
    else:
        assert _choose(capability, CheckpointFormat.BF16, request).kv is asked


@pytest.mark.parametrize("capability", ROWS)
@pytest.mark.parametrize("checkpoint", PLAIN)
@pytest.mark.parametrize("asked", [None, BF16])
def test_no_loss_goes_unstated(
    capability: str | None, checkpoint: CheckpointFormat, asked: WeightFormat | None
) -> None:
    choice = _choose(capability, checkpoint, PrecisionRequest(weights=asked))
    lossless = checkpoint is CheckpointFormat.BF16 and choice.weights is BF16
    assert ("lossy" in choice.weights_reason) is not lossless


def test_every_option_of_the_row_is_either_taken_or_passed_over_with_a_reason() -> None:
    for capability, objective in product(ROWS, Objective):
        choice = _choose(capability, CheckpointFormat.BF16, PrecisionRequest(objective=objective))
        named = [p.option for p in choice.passed_over]
        assert len(named) == len(set(named))
        assert f"weights {choice.weights}" not in named
        assert all(p.why for p in choice.passed_over)


@pytest.mark.parametrize("text", ["9", "9.", ".0", "nine.zero", "9.0.0", "-9.0", "", "9,0", "٩.٠"])
def test_what_is_no_compute_capability_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="compute capability"):
        ComputeCapability.parse(text)


def test_ten_is_newer_than_nine() -> None:
    assert ComputeCapability.parse("10.0") > ComputeCapability.parse("9.0") > ComputeCapability.parse("8.9")
    assert str(ComputeCapability.parse("12.1")) == "12.1"


def test_the_summary_is_short() -> None:
    assert _choose("9.0", CheckpointFormat.INT4).summary == "INT4, KV FP8"
