"""Certificates, channels and repairs, and the sentence each must be described by. No test here."""

from dataclasses import replace

from ormas_core.certificate_events import (
    Certificate,
    CertificateRefused,
    CertificateRevoked,
    Channels,
    ChannelsCleared,
    Repair,
)
from ormas_core.claims import CertificateClass, UnitKind
from ormas_core.events import (
    Event,
)
from ormas_core.terms import (
    ChannelLevel,
)

CERTIFICATE = Certificate(
    step=3,
    layer="block.conv",
    units=(1, 2),
    cls=CertificateClass.ABSORBING,
    unit_kind=UnitKind.CHANNEL,
    optimizer="SGD",
    conditions=(),
    still=True,
    initial=True,
    trace=(),
    graph="ab",
    engine=1,
)
REPAIR = Repair(
    step=3,
    layer="conv",
    units=(3,),
    cause="certified",
    changed=("conv.weight",),
    delta=1.5,
    relative=0.125,
)
CERTIFICATE_MESSAGES: list[tuple[Event, str]] = [
    (
        CERTIFICATE,
        (
            "block.conv: channels 1, 2 can never recover: their gradient is exactly zero for ever "
            "(certificate, 0 lines of proof); present at the first check."
        ),
    ),
    (
        replace(
            CERTIFICATE,
            units=tuple(range(10)),
            cls=CertificateClass.BOUNDED,
            unit_kind=UnitKind.HEAD,
            initial=False,
        ),
        (
            "block.conv: heads 0, 1, 2, 3, 4, 5, 6, 7 and 2 more cannot recover while batch and "
            "input keep to the stated limits (certificate, 0 lines of proof)."
        ),
    ),
    (
        CertificateRefused(
            step=0, layer="conv", units=(3,), reason="waiting for momentum to drain"
        ),
        "conv: 3 look stuck, not certified: waiting for momentum to drain.",
    ),
    (
        CertificateRevoked(
            step=0,
            layer="conv",
            units=(3,),
            cls=CertificateClass.ABSORBING,
            reason="the gradient of conv is not zero there",
        ),
        (
            "conv: the absorbing certificate of 3 is revoked: the gradient of conv is not zero "
            "there."
        ),
    ),
    (
        Channels(
            step=0,
            layer="conv",
            level=ChannelLevel.SOME,
            n=8,
            certified=2,
            flat=0,
            decayed=1,
            silent=0,
            initial=True,
        ),
        (
            "conv: some of 8 channels are out of use: 2 certified, 1 decayed; present at the first "
            "check."
        ),
    ),
    (
        ChannelsCleared(step=9, layer="conv", n=8, since_step=3),
        "conv: all 8 channels are in use again.",
    ),
    (
        REPAIR,
        (
            "conv: certified rows 3 were re-initialised; conv.weight changed by 1.5 together (12% "
            "of their norm)."
        ),
    ),
    (
        replace(REPAIR, refused="conv.weight is frozen"),
        "conv: certified rows 3 were not repaired: conv.weight is frozen.",
    ),
]
