"""NVLink of one GPU as NVML tells it: how many links there are and work, and their errors summed up.

Guarantees: links that the GPU does not have are no links that are down; a GPU that tells nothing of its links raises
NVML's own error for what is not supported. Newer GPUs (Hopper on) tell link by link through field values with the link
as scope, older ones through a call for each link.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["errors_of_links", "link_states", "value_of"]

_MOST_LINKS = 18
"""Of the parts up to Blackwell; a binding that knows more says so."""

_VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Member of a field value's union by NVML_VALUE_TYPE_*."""


def value_of(library: Any, answer: Any) -> int | float | None:
    """The number in a field value, None where it holds an error."""
    if answer.nvmlReturn != library.NVML_SUCCESS:
        return None
    value: int | float = getattr(answer.value, _VALUE_MEMBERS[answer.valueType])
    return value


def link_states(library: Any, handle: Any) -> tuple[int, int | None]:
    """How many links the GPU has and how many of them are up, sleeping ones included; None where no link says.

    Raises:
        NVMLError: of the library, where the GPU tells nothing of its links.
    """
    count, states = _states_by_field(library, handle)
    if not states and count != 0:
        states = _states_by_call(library, handle, count)
    if count is None and not states:
        raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)
    up = {getattr(library, "NVML_NVLINK_STATE_ACTIVE", 1), getattr(library, "NVML_NVLINK_STATE_SLEEP", 2)}
    active = sum(state in up for state in states) if states or count == 0 else None
    return len(states) if count is None else count, active


def errors_of_links(library: Any, handle: Any, field: str) -> int:
    """A counter of errors, summed over the links that tell it.

    Args:
        library: the `pynvml` module, or what answers like it.
        handle: of the GPU.
        field: constant of a field value that has the link as its scope.

    Raises:
        NVMLError: of the library, where no link tells it.
    """
    counts = [count for count in _by_link(library, handle, getattr(library, field), None) if count is not None]
    if not counts:
        raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)
    return int(sum(counts))


def _states_by_field(library: Any, handle: Any) -> tuple[int | None, list[int]]:
    try:
        answer = library.nvmlDeviceGetFieldValues(handle, [library.NVML_FI_DEV_NVLINK_LINK_COUNT])[0]
        count = value_of(library, answer)
        states = _by_link(library, handle, library.NVML_FI_DEV_NVLINK_GET_STATE, None if count is None else int(count))
    except AttributeError:  # a binding from before these fields
        return None, []
    except library.NVMLError as error:
        if error.value != library.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None, []
    return None if count is None else int(count), [int(state) for state in states if state is not None]


def _states_by_call(library: Any, handle: Any, count: int | None) -> list[int]:
    states = []
    for link in range(_most_links(library) if count is None else count):
        try:
            states.append(library.nvmlDeviceGetNvLinkState(handle, link))
        except library.NVMLError as error:
            # Behind the last link the argument is invalid; a link in between that is off says not supported.
            if error.value not in (library.NVML_ERROR_INVALID_ARGUMENT, library.NVML_ERROR_NOT_SUPPORTED):
                raise
    return states


def _by_link(library: Any, handle: Any, field: int, count: int | None) -> Iterable[int | float | None]:
    links = range(_most_links(library) if count is None else count)
    if not links:
        return ()
    answers = library.nvmlDeviceGetFieldValues(handle, [(field, link) for link in links])
    return [value_of(library, answer) for answer in answers]


def _most_links(library: Any) -> int:
    return int(getattr(library, "NVML_NVLINK_MAX_LINKS", _MOST_LINKS))
