"""Defines the keys of sources without natural clients, and assigns their examples to clients."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, model_validator
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.values import Count, Seed
from raysim.data.dealing import deal_test
from raysim.data.holdout import ClientsShare, ExamplesShare, Holdout, check_holdout, hold_out_examples
from raysim.data.partitions.iid import Iid
from raysim.data.partitions.natural import Natural
from raysim.data.partitions.partition import Partition, divide
from raysim.data.partitions.shuffled import Shuffled, mix
from raysim.errors import ExperimentError, within
from raysim.seeds import key

Assignment = dict[str, list[tuple[str, Int64s]]]


class Partitioned(BaseModel):
    """Keys of every source without natural clients."""

    clients: Count = Key(
        description='Number of clients, validation clients included; their ids are "0", "1" and so on.'
    )
    partition: Partition = Key(Iid(), description="How training examples are divided among the clients.")
    mix: float = Key(
        0.0, ge=0, le=1, description="From 0 (the partition) to 1 (its sizes, with examples drawn at random)."
    )
    holdout: ClientsShare = 0.0
    holdout_examples: ExamplesShare = 0.0
    test_clients: Literal["partition", "pooled"] | Count = Key(
        "partition",
        description=(
            '"partition": the same clients get the test examples, each class in proportion to their training '
            'examples of it, before anything is held out; "pooled": one client named "test" has them all; a number: '
            "as many other clients, who do not train, have them by a partition of the same kind."
        ),
    )
    seed: Seed | None = Key(None, description="Seed of every draw above. Absent: the experiment's.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_holdout(self.clients, self.holdout, self.holdout_examples)
        chosen = self.partition.sizes_of if isinstance(self.partition, Shuffled) else self.partition
        if isinstance(chosen, Natural):
            raise ValueError(
                "partition 'natural' needs a source with natural clients, and this one has none: "
                "choose iid, shards, dirichlet, dirichlet_reassign, pachinko, quantity or shuffled"
            )
        return self


def assign(
    section: Partitioned, train_labels: Int64s, test_labels: Int64s, seed: int, coarse_of: Int64s | None = None
) -> Assignment:
    """Assign examples to the clients of each split, in order of position.

    Indices of "train" and "validation" are into the training examples, those of "test" into the test examples. Every
    training example belongs to exactly one client of the first two splits, every test example to one of "test".
    `coarse_of`: the coarse label of every label, if the source has two levels.
    """
    parts = divide(section.partition, train_labels, section.clients, seed, coarse_of=coarse_of)
    parts = mix(parts, section.mix, seed)
    ids = [str(client) for client in range(len(parts))]
    assignment: Assignment = {"train": list(zip(ids, parts, strict=True))}
    if section.holdout:
        holdout = Holdout(len(parts), section.holdout, seed)
        for name, members in (("train", holdout.train()), ("validation", holdout.validation())):
            assignment[name] = [(ids[client], parts[client]) for client in members.tolist()]
    elif section.holdout_examples:
        pairs = [hold_out_examples(part, section.holdout_examples, k, seed) for k, part in enumerate(parts)]
        for name, side in (("train", 0), ("validation", 1)):
            assignment[name] = [(client_id, pair[side]) for client_id, pair in zip(ids, pairs, strict=True)]
    match section.test_clients:
        case "pooled":
            assignment["test"] = [("test", np.arange(len(test_labels), dtype=np.int64))]
        case "partition":
            assignment["test"] = list(zip(ids, deal_test(parts, train_labels, test_labels, seed), strict=True))
        case others:
            if others > len(test_labels):
                raise ExperimentError(
                    f"data.test_clients must be in 1..{len(test_labels)}, the number of test examples, but is {others}"
                )
            # A seed of their own: with the same one, test client k would prefer the classes of training client k.
            own = key(seed, "test/partition")
            try:
                dealt = divide(section.partition, test_labels, others, own, coarse_of=coarse_of)
            except ExperimentError as error:
                raise ExperimentError(
                    f"data.test_clients = {others} deals the {len(test_labels):,} test examples by the same partition: "
                    f"{within(error)}"
                ) from None
            tested = mix(dealt, section.mix, own)
            assignment["test"] = [(f"test-{client}", part) for client, part in enumerate(tested)]
    return assignment
