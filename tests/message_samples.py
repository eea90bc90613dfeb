"""Events, and the sentence that each must be described by. No test here."""

import math
from dataclasses import replace

from certificate_messages import CERTIFICATE_MESSAGES

from ormas_core.across import ClipStarvation, ExpertsStarving, ExpertUsage, GradientSlope
from ormas_core.events import (
    Alarm,
    AlarmCleared,
    Anchor,
    Event,
    LossRecovered,
    LossReduced,
    LossSpike,
    Manifest,
    NoGradients,
    NonfiniteGradient,
    NonfiniteLoss,
    NotLearning,
    RunEnd,
    SkippedStep,
)
from ormas_core.model_events import EvalMode, NonfiniteState, StatisticsAtOdds, SwitchedToEval
from ormas_core.record_events import CheckpointSaved, RecordGap, RunResumed
from ormas_core.run_events import MonitorError, SinkError, StopRequested
from ormas_core.terms import (
    Diagnosis,
    ExpertShare,
    Mechanism,
    MechanismState,
    NonfiniteCount,
    SavedFile,
    Signal,
    Stage,
    Status,
    Trend,
)
from ormas_core.testing import measurement, run_start

ALARM = Alarm(
    step=3,
    layer="block3.conv",
    diagnosis=Diagnosis.EXPLODING,
    value=12345.0,
    normal=0.125,
    sigma=5.0,
    stage=Stage.UNSCALED,
    detail="5.0 decades off",
)
NONFINITE = NonfiniteGradient(
    step=3,
    layer="fc2",
    layers=(
        NonfiniteCount(layer="fc2", nan=16, inf=2),
        NonfiniteCount(layer="fc1", nan=99, inf=0),
    ),
    after="relu",
    before="fc2",
    output_finite=None,
    loss=0.6931,
)
SLOPE = GradientSlope(
    step=0,
    trend=Trend.GROWING,
    signal=Signal.OUTPUTS,
    factor=10.0,
    first="layers.40",
    last="layers.2",
    layers=39,
    first_value=1.0,
    last_value=1e38,
    gradient_type="float32",
    layers_left=0.53,
    beyond="layers.1",
)
NEVER = ExpertShare(expert="6", share=0.0, seen=0.0, since_step=None)
ONCE = ExpertShare(expert="7", share=0.01, seen=0.5, since_step=40)
SELDOM = ExpertShare(expert="2", share=0.0123, seen=0.25, since_step=99)
RESUMED = RunResumed(
    step=10,
    attempt=10,
    restored=True,
    head="ab" * 32,
    lines=7,
    metrics_rows=16,
    reached=15,
    repeated=5,
    ended=False,
    torn_record_bytes=20,
    torn_metrics_bytes=1,
)
MESSAGES: list[tuple[Event, str]] = [
    (
        run_start(("a", "b")),
        "Watching 2 layers of Model (torch), a check every 50 steps.",
    ),
    (Manifest(step=0, mechanisms=()), "All is observed."),
    (
        Manifest(
            step=0,
            mechanisms=(
                Mechanism(name="gradient_norms", state=MechanismState.ACTIVE),
                Mechanism(name="scaling", state=MechanismState.UNUSED, reason="no scaler"),
                Mechanism(name="loss", state=MechanismState.OFF, reason="no loss was given"),
                Mechanism(name="maxima", state=MechanismState.UNOBSERVABLE, reason="compiled"),
            ),
        ),
        "loss off: no loss was given; maxima unobservable: compiled",
    ),
    (
        RESUMED,
        (
            "Resumed at step 10 after line 7 of the record, head abababababab, with the baselines "
            "of the checkpoint; 5 steps up to 15 are done again; what came before has no end; 21 "
            "bytes of a torn last line were cut off."
        ),
    ),
    (
        replace(
            RESUMED,
            restored=False,
            detail="no state",
            lines=0,
            repeated=0,
            torn_record_bytes=0,
            torn_metrics_bytes=0,
        ),
        "Resumed at step 10 in a new record, with new baselines (no state).",
    ),
    (
        RecordGap(step=3, error="OSError: No space left on device", events=2, measurements=5),
        (
            "2 events and 5 measurements are missing from the record here: OSError: No space left "
            "on device."
        ),
    ),
    (
        CheckpointSaved(
            step=3,
            path="out/model.safetensors",
            files=(SavedFile(name="model.safetensors", bytes=1, sha256="00"),),
        ),
        "Model out/model.safetensors: 1 files.",
    ),
    (measurement(0, {"a": 1.0, "b": 2.0}, loss=0.12345), "Check of 2 layers, loss 0.1235."),
    (measurement(0, {"a": 1.0}), "Check of 1 layers, loss none."),
    (ALARM, "block3.conv: exploding, gradient norm 1.23e+04; normal is 0.125."),
    (
        replace(ALARM, diagnosis=Diagnosis.VANISHING, value=1e-9),
        "block3.conv: vanishing, gradient norm 1e-09; normal is 0.125.",
    ),
    (
        replace(ALARM, diagnosis=Diagnosis.NO_GRADIENT, value=0.0, detail="no .grad"),
        "block3.conv: no_gradient, no .grad; normal is 0.125.",
    ),
    (
        AlarmCleared(
            step=9,
            layer="fc1",
            diagnosis=Diagnosis.VANISHING,
            value=0.5,
            normal=0.25,
            since_step=4,
        ),
        "fc1: vanishing since step 4 is over; gradient norm 0.5, normal 0.25.",
    ),
    (
        SLOPE,
        (
            "Gradients at outputs are growing within one backward pass: geometrically, x10 per "
            "layer from layers.40 to layers.2 (39 layers, 1.0e+00 to 1.0e+38); overflow of float32 "
            "at layers.1."
        ),
    ),
    (
        replace(
            SLOPE, trend=Trend.VANISHING, factor=0.1, last_value=1e-38, layers_left=6.8, beyond=None
        ),
        (
            "Gradients at outputs are vanishing within one backward pass: geometrically, x0.1 per "
            "layer from layers.40 to layers.2 (39 layers, 1.0e+00 to 1.0e-38); underflow of "
            "float32 expected 7 layers further down."
        ),
    ),
    (
        replace(
            SLOPE,
            signal=Signal.PARAMETERS,
            gradient_type="float8_e5m2",
            layers_left=None,
            beyond=None,
        ),
        (
            "Gradients of parameters are growing within one backward pass: geometrically, x10 per "
            "layer from layers.40 to layers.2 (39 layers, 1.0e+00 to 1.0e+38)."
        ),
    ),
    (
        ExpertsStarving(
            step=99, container="moe", experts=8, starving=(NEVER, ONCE), rare=(SELDOM,), checks=64
        ),
        (
            "moe: 2 of 8 experts get no tokens: 6 (never any), 7 (none since step 40); 1 of 8 are "
            "rare and not dead: 2 (1.23% of the tokens, in 25% of the checks). Seen in samples: "
            "no proof."
        ),
    ),
    (
        ClipStarvation(
            step=3, layer="fc2", value=1234.5, factor=0.00081, clip_norm=1.0, rest=0.00042
        ),
        (
            "fc2 takes all that clipping leaves: its gradient norm is 1.23e+03, so every gradient "
            "of this step is multiplied by 0.00081, and all other layers together keep 0.00042 of "
            "the 1 that is clipped to."
        ),
    ),
    (
        NonfiniteState(
            step=0,
            layers=(
                NonfiniteCount(layer="pooler", nan=3, inf=0),
                NonfiniteCount(layer="head", nan=0, inf=1),
            ),
        ),
        (
            "Not finite before the first step: pooler (3 NaN, 0 Inf), head (0 NaN, 1 Inf). Loading "
            "or initialisation has done that, not training."
        ),
    ),
    (
        EvalMode(step=0, modules=("bn", "stem")),
        "In evaluation mode from the first check on: bn, stem.",
    ),
    (
        SwitchedToEval(step=50, modules=("Net",), before=40),
        (
            "Changed to evaluation mode after step 40 while training goes on: Net. Call "
            "model.train() after a validation."
        ),
    ),
    (
        StatisticsAtOdds(step=80, drifting=("stem.bn", "neck"), untouched=()),
        (
            "Batch norms are at odds with their running statistics. Those of stem.bn, neck move, "
            "although all parameters are frozen: model.train() undoes eval() of a part; call it "
            "again after that."
        ),
    ),
    (
        StatisticsAtOdds(step=80, drifting=(), untouched=("head.bn",)),
        (
            "Batch norms are at odds with their running statistics. Those of head.bn are as they "
            "were built, mean 0 and variance 1, although the parameters are trained: in evaluation "
            "mode from the start, or with a momentum of 0."
        ),
    ),
    (
        StopRequested(step=3, reasons=("nonfinite_loss",), ranks=(0,)),
        "The training is to stop (stop_on): nonfinite_loss.",
    ),
    (
        StopRequested(step=3, reasons=("alarm", "loss_spike"), ranks=(1, 2)),
        "The training is to stop (stop_on): alarm, loss_spike on rank 1, 2.",
    ),
    (
        NonfiniteLoss(step=3, value=float("nan"), replaced=True),
        (
            "The loss is nan. The weights may be lost: stop before saving them. The loss that the "
            "framework logs here is a substitute: an average of earlier ones."
        ),
    ),
    (
        ExpertUsage(step=99, container="moe", experts=8, starving=(), rare=(), checks=64),
        "moe: all of 8 experts are in use. Seen in samples: no proof.",
    ),
    (
        LossSpike(step=3, value=41.5, normal=1.25, sigma=7.04),
        "The loss is 41.5; normal is 1.25 (7.0 standard deviations).",
    ),
    (
        LossRecovered(step=3, value=1.5, normal=1.25, since_step=2),
        "The loss is back at 1.5 after the spike of step 2.",
    ),
    (
        NonfiniteLoss(step=3, value=math.nan),
        "The loss is nan. The weights may be lost: stop before saving them.",
    ),
    (
        NONFINITE,
        (
            "fc2: gradient has 16 NaN and 2 Inf at loss 0.6931. Going backward it is the first "
            "affected layer; the gradient at the output of relu was finite, at the output of fc2 "
            "it was not. 1 further layers are consequences."
        ),
    ),
    (
        replace(NONFINITE, layers=NONFINITE.layers[:1], output_finite=True, loss=None),
        (
            "fc2: gradient has 16 NaN and 2 Inf. Going backward it is the first affected layer; "
            "the gradient at its own output was finite, so it arose in this layer."
        ),
    ),
    (
        replace(NONFINITE, layers=NONFINITE.layers[:1], after=None, output_finite=False),
        (
            "fc2: gradient has 16 NaN and 2 Inf at loss 0.6931. Going backward it is the first "
            "affected layer."
        ),
    ),
    (
        replace(NONFINITE, layers=NONFINITE.layers[1:], after=None),
        (
            "fc2: gradient is not finite at loss 0.6931. Going backward it is the first affected "
            "layer. 1 further layers are consequences."
        ),
    ),
    (
        SkippedStep(step=3, layer="fc2", scale=65536.0, in_a_row=2),
        "The loss scaler skips this update: overflow at scale 65536, first in fc2 (2 in a row).",
    ),
    (
        NotLearning(
            step=3,
            layer="fc2",
            skipped=25,
            scale_before=65536.0,
            scale=2.0**-9,
            since_step=3,
        ),
        (
            "25 consecutive optimizer steps skipped, scale 65536 -> 0.002, no update since step 3; "
            "the overflow is in fc2."
        ),
    ),
    (
        NotLearning(step=3, layer=None, skipped=30, scale_before=1.0, scale=0.5, since_step=7),
        "30 consecutive optimizer steps skipped, scale 1 -> 0.5, no update since step 7.",
    ),
    (
        NoGradients(step=0, absent=True, layers=2),
        (
            "No gradient in any watched layer: every .grad is None. Nothing went backward in this "
            "step, or zero_grad() ran since; in a plain loop, call step() after backward() and "
            "before zero_grad(); this check says nothing about single layers."
        ),
    ),
    (
        NoGradients(step=0, absent=False, layers=2),
        (
            "No gradient in any watched layer: every one is exactly zero. The loss does not depend "
            "on the weights any more (it is saturated, or constant), or zero_grad() ran before "
            "step(); this check says nothing about single layers."
        ),
    ),
    (
        NoGradients(step=0, absent=True, layers=0),
        (
            "No watched layer has a trainable parameter that can be read here (frozen, or sharded "
            "over processes): the manifest says why. Nothing is monitored."
        ),
    ),
    (LossReduced(step=0, elements=32), "The loss has 32 elements; their mean is recorded."),
    (
        SinkError(step=0, sink="MLflowSink", error="OSError: no server"),
        "The sink MLflowSink failed and was dropped; training goes on: OSError: no server",
    ),
    (
        MonitorError(step=0, error="KeyError: 'x'"),
        "The monitor failed and stopped watching; training goes on: KeyError: 'x'",
    ),
    (
        Anchor(step=0, head="0123456789abcdef", lines=41, metrics_head="b", metrics_rows=2),
        "Anchor: 41 lines, head 0123456789ab.",
    ),
    (
        RunEnd(step=9, steps=9, checks=3, counts={}, status=Status.HEALTHY),
        "Run ended: healthy, 9 steps, 3 checks.",
    ),
    (
        RunEnd(step=9, steps=9, checks=3, counts={}, status=Status.INTERRUPTED, error="OSError"),
        "Run ended: interrupted (OSError), 9 steps, 3 checks.",
    ),
    *CERTIFICATE_MESSAGES,
]
