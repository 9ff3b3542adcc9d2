from __future__ import annotations

import numpy as np

from specrt.request import SamplingParams
from specrt.sampling import TokenHistory


def params(**penalties: float) -> SamplingParams:
    return SamplingParams(max_tokens=1, **penalties)  # type: ignore[arg-type]


def penalized(history: TokenHistory, logits: list[float]) -> list[float]:
    row = np.array(logits, np.float32)
    history.penalize_inplace(row)
    return row.tolist()


def test_repetition_counts_prompt_and_output_once_each() -> None:
    history = TokenHistory([0, 0, 1, 2, 2], 3, params(repetition_penalty=2.0))
    assert penalized(history, [4.0, -4.0, 8.0, 5.0]) == [2.0, -8.0, 4.0, 5.0]


def test_presence_and_frequency_count_the_output_only() -> None:
    history = TokenHistory([0, 1, 1, 2], 2, params(presence_penalty=0.5, frequency_penalty=0.25))
    assert penalized(history, [1.0, 1.0, 1.0, 1.0]) == [1.0, 0.25, 0.25, 1.0][:1] + [
        0.25,
        0.25,
        1.0,
    ]
    history.push(1)
    assert penalized(history, [1.0, 1.0, 1.0, 1.0]) == [1.0, 0.0, 0.25, 1.0]


def test_repetition_comes_before_the_other_penalties() -> None:
    history = TokenHistory([0, 1], 1, params(repetition_penalty=2.0, presence_penalty=1.0))
    assert penalized(history, [4.0, 4.0, 4.0]) == [2.0, 1.0, 4.0]


def test_a_tried_path_is_rewound() -> None:
    #  root (output 5) -+- 1 - 1        each branch sees its own tokens only
    #                   +- 2
    history = TokenHistory([0, 5], 1, params(frequency_penalty=1.0))
    zeros = [0.0] * 6
    mark = history.mark()
    history.push(1)
    history.push(1)
    assert penalized(history, zeros) == [0.0, -2.0, 0.0, 0.0, 0.0, -1.0]
    history.rewind(mark)
    history.push(2)
    assert penalized(history, zeros) == [0.0, 0.0, -1.0, 0.0, 0.0, -1.0]
    history.rewind(mark)
    assert penalized(history, zeros) == [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]


def test_without_penalties_nothing_is_stored() -> None:
    history = TokenHistory([1, 2, 3], 1, params())
    history.push(2)
    history.rewind(history.mark())
    assert not history.is_active
    assert not history._counts and not history._pushed and not len(history._prompt_ids)
    assert penalized(history, [1.0, 2.0, 3.0, 4.0]) == [1.0, 2.0, 3.0, 4.0]
