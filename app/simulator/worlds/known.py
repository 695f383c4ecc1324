"""The three worlds with names, and where each figure is from.

[P] is the Allpass paper (Tables 2 and 3, Figures 2 and 3: prices of an A100 in October 2025, 20 starts of each
company). [E] is what the emulated companies of this repository play (`providers/emulators`), [S] the usual settings of
the service (`app/settings.py`, `providers/*/plugin.py`). [A] is assumed: nothing public says more than an order of
magnitude.
"""

from __future__ import annotations

from app.simulator.worlds.world import TierWorld, World

# What was simulated before there were other worlds: prices as in the paper's evaluation, starts by [P] Table 3.
FRIENDLY = World(
    "friendly",
    serverless=TierWorld(2.10, 3.88, 1.84),
    marketplace=TierWorld(0.74, 36.04, 7.35),
    conventional=TierWorld(1.29, 255.59, 26.26),
    # Bids are as in `measured` here: whoever asks for them asks how they are lost.
)

# One world with every figure that somebody has published or that is measured here, at its middle.
MEASURED = World(
    "measured",
    serverless=TierWorld(
        # Modal's list of 2026-05-07: A100 40 GB $2.10, and for a sandbox of ours 4 cores at $0.1415 and 32 GiB at
        # $0.024 (`providers/modal/catalogue.py`): $3.43 in all.
        usd=3.431952,
        startup_mean_s=3.88,
        startup_sd_s=1.84,
        cold_share=0.1,  # [A]; a cold start with its image elsewhere: 14 to 50 s by Modal's own figures of 2026
        cold_mean_s=30.0,
        slow_share=0.01,  # [E]: one in a hundred beyond a minute, two in a thousand never
        slow_s=60.0,
        never_share=0.002,
        give_up_s=180.0,  # [S]
        link_least_mbps=2_000.0,  # [A]: a data centre's
        link_most_mbps=10_000.0,
        mean_life_s=86_400.0,  # [A]; Modal's documentation: GPU sandboxes may be preempted, SIGINT and some 30 s
        notice_s=30.0,
    ),
    marketplace=TierWorld(
        usd=0.74,  # [P]: what its jobs paid on average
        startup_mean_s=36.04,
        startup_sd_s=7.35,
        slow_share=0.05,  # [E]: one in twenty beyond five minutes, three in a hundred never
        slow_s=300.0,
        never_share=0.03,
        give_up_s=600.0,  # [S]
        image_gb=8.0,  # [E]; Vast.ai's documentation: 1 to 5 minutes where the image is not cached
        link_least_mbps=150.0,  # [E]
        link_most_mbps=5_000.0,
        storage_usd=0.0128,  # 64 GB [S] at $0.0002 for a gigabyte and hour [E]
        traffic_usd=0.005,  # [A]; [E] draws $0.001 to $0.019, [S] leaves out what is above $0.05
        hosts=50,  # [P] Figure 3: 40 to 60 offers of A100s
        dearer_share=0.025,  # so that the last of them costs what the dearest did in [P] Table 2, $1.66
        dearer_most=2.24,
        mean_life_s=86_400.0,  # [A]: between hosts that stay and AWS's spot machines, 13.8 h (see below)
        drought_share=0.02,  # RunPod's A100s: not offered eight times in four weeks, for 1.7 h on average (see below)
        drought_s=6_120.0,
    ),
    conventional=TierWorld(
        usd=1.29,
        startup_mean_s=255.59,
        startup_sd_s=26.26,
        slow_share=0.02,  # [E]: one in fifty beyond 20 minutes, five in a thousand never
        slow_s=1_200.0,
        never_share=0.005,
        give_up_s=1_800.0,  # [S]
        environment_gb=3.0,  # no image runs there (`takes_images`): torch with CUDA is installed
        link_least_mbps=2_000.0,  # [A]
        link_most_mbps=10_000.0,
        # "The Llama 3 Herd of Models" (2024), section 3.3.4: 419 unexpected interruptions of 16,384 GPUs in 54 days: a
        # machine of eight has one in 264 days. One in 100 days [A], for what is not as well kept.
        mean_life_s=8_640_000.0,
        # Lambda's A100s were not offered 26 times in the four weeks from 2025-10-19 on, for 2.7 h on average
        # (github.com/tugot17/gpu-price-tracker, data/summary, 957 looks; MIT).
        drought_share=0.103,
        drought_s=9_600.0,
    ),
    model_gb=16.0,  # eight thousand million weights in bf16
    models=3,  # as for merging: 50, 30 and 20 % of the jobs
    data_gb=0.1,  # [A]
    begin_s=8.0,  # imports of torch, transformers and peft, 3 to 6 s on these cores, and weights to the GPU [A]
    never_saves_share=0.1,  # [A]: one kind of ten in `benchmarks.unaware`
    known_share=0.8,  # [A]: of an app whose first job has shown it
    own_saves_share=0.2,  # [A]
    own_saves_every_s=900.0,  # [A]
    checkpoint_every_s=300.0,  # [S]
    save_s=1.0,  # a save waits for one copy in memory (`benchmarks.transfer`); here with 10 GB of state [A]
    prepare_s=20.0,  # [S]
    bid_share=0.5,  # Vast.ai's documentation: interruptible machines often cost half, or less
    bid_sd_share=0.24,  # [A]: as the price on demand of a calm day (`app.simulator.prices`)
    bid_forgets_s=10_800.0,  # [A]: likewise
    bid_taken_s=49_680.0,  # [A]: as AWS took its spot machines back in 2020, after 13.8 h (see below)
    resize_s=1.0,  # what decisions count; `benchmarks.elastic` has 0.1 to 0.3 s of tiny models
)

# The rough end of what users tell: each figure at least as bad as in `measured`.
HARSH = World(
    "harsh",
    serverless=TierWorld(
        usd=3.831552,  # A100 80 GB $2.4984, with the same CPU and memory
        startup_mean_s=3.88,
        startup_sd_s=1.84,
        cold_share=0.5,
        cold_mean_s=50.0,
        slow_share=0.03,
        slow_s=60.0,
        never_share=0.01,
        give_up_s=180.0,
        link_least_mbps=500.0,
        link_most_mbps=2_000.0,
        mean_life_s=21_600.0,
        notice_s=0.0,  # sandboxes that were gone without a word are told of, too
        drought_share=0.02,  # requests that found no GPU for 21 minutes, after which the client gives up
        drought_s=1_260.0,
    ),
    marketplace=TierWorld(
        usd=1.08,  # [P] Table 2: median of October 2025
        startup_mean_s=36.04,
        startup_sd_s=7.35,
        slow_share=0.10,
        slow_s=300.0,
        never_share=0.06,
        give_up_s=600.0,
        image_gb=8.0,
        link_least_mbps=100.0,
        link_most_mbps=1_000.0,
        storage_usd=0.0192,  # the dearest of [E]
        traffic_usd=0.02,
        hosts=20,  # a tracker of October 2026 found 4 verified offers of H100s
        dearer_share=0.03,
        dearer_most=1.57,  # to $1.70: the median rose from $1.14 to that within a day of October 2026
        # Machines that can be interrupted: V100s at Google lived for 1.9 h on average in 2020, all kinds for 1.6 h,
        # those of AWS for 13.8 h (hours over losses in github.com/stanford-futuredata/training_on_a_dime,
        # logs/{gcp,aws}/availability; MIT). Bids that lose at Vast.ai are told nothing.
        mean_life_s=7_200.0,
        notice_s=0.0,
        drought_share=0.25,  # AWS g4dn spot: none for 24 % of 24.5 h (github.com/uclasystem/bamboo, doc/data; MIT)
        drought_s=7_200.0,
    ),
    conventional=TierWorld(
        usd=1.99,  # Lambda's list for an A100 SXM from 2026-11-16 on
        startup_mean_s=255.59,
        startup_sd_s=26.26,
        slow_share=0.05,
        slow_s=1_200.0,
        never_share=0.02,
        give_up_s=1_800.0,
        environment_gb=3.0,
        link_least_mbps=500.0,
        link_most_mbps=2_000.0,
        mean_life_s=864_000.0,
        drought_share=0.3,  # [A]: what is scarce is gone for hours
        drought_s=28_800.0,
    ),
    model_gb=16.0,
    models=3,
    data_gb=1.0,
    begin_s=20.0,
    never_saves_share=0.5,  # the worst class of workloads: half of the jobs cannot be moved
    known_share=0.5,
    own_saves_share=0.25,
    own_saves_every_s=1_800.0,
    checkpoint_every_s=600.0,
    save_s=10.0,  # what a save is taken to cost by `app.core.machine_lives`
    prepare_s=20.0,
    bid_share=0.65,  # [A]
    bid_sd_share=0.4,  # [A]
    bid_forgets_s=10_800.0,
    bid_taken_s=5_760.0,  # as Google took preemptible machines back in 2020, after 1.6 h
    resize_s=10.0,  # what the Cornucopia paper takes a resize to cost at most
)

WORLDS = {one.name: one for one in (FRIENDLY, MEASURED, HARSH)}
