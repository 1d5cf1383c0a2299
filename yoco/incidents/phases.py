"""Which phase of an incident causes which. Pure: the ingest checks each report by it, the rules each incident."""

# Each phase with those that it cannot come before: its causes. Pre-copy lets a spare be ready and state move before
# training is quiet, so those are free among themselves; whatever moved is verified once training is quiet.
PHASE_CAUSES = {
    "detected_at": ("started_at",),
    "quiesced_at": ("started_at", "detected_at"),
    "spare_ready_at": ("started_at", "detected_at"),
    "state_moved_at": ("started_at", "detected_at", "spare_ready_at"),
    "state_verified_at": ("started_at", "detected_at", "quiesced_at", "spare_ready_at", "state_moved_at"),
    "resumed_at": (
        "started_at", "detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at",
    ),
}  # fmt: skip
PHASE_ORDER = [(cause, phase) for phase, causes in PHASE_CAUSES.items() for cause in causes]
