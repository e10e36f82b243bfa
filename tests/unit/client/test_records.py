"""Records that are made quickly are the standard library's in all that anybody sees."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, ClassVar

import pytest

import ftrun.slurm
import ftrun.supervisor
from ftrun.slurm import records


def _classes(of: Callable[..., Any]) -> dict[str, Any]:
    """The same records, made by this decorator."""

    @of(frozen=True, slots=True)
    class Empty:
        """Without a field."""

    @of(frozen=True, slots=True)
    class One:
        value: float

    @of(frozen=True, slots=True)
    class Many:
        """With all that a field may have."""

        kind: ClassVar[str] = "many"
        name: str
        sizes: tuple[int, ...] = ()
        more: list[str] = field(default_factory=list)

        @property
        def first(self) -> str:
            return self.name[:1]

    @of(frozen=True, slots=True)
    class Checked:
        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("a size is not negative")

    @of(frozen=True, slots=True)
    class Odd:
        name: str
        seen_s: float = field(default=0.0, compare=False)

        def __hash__(self) -> int:
            return 7

    return {one.__name__: one for one in (Empty, One, Many, Checked, Odd)}


QUICK, USUAL = _classes(records.dataclass), _classes(dataclasses.dataclass)
NAN = float("nan")
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Empty", (), {}),
    ("Empty", (1,), {}),
    ("One", (NAN,), {}),
    ("One", (), {}),
    ("One", (), {"value": 2.0}),
    ("Many", ("a",), {}),
    ("Many", ("a", (1, 2)), {"more": ["x"]}),
    ("Many", (), {"name": "a", "size": 1}),
    ("Checked", (3,), {}),
    ("Checked", (-3,), {}),
    ("Odd", ("a",), {"seen_s": 2.0}),
]


def _told(act: Callable[[], Any]) -> str:
    try:
        return str(act()).replace("test_records.", "")
    except Exception as error:  # noqa: BLE001  which one it is, is compared
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(("name", "words", "named"), CALLS)
def test_a_quick_record_is_made_shown_and_compared_as_a_usual_one(
    name: str, words: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Arguments, defaults, what is refused and how, repr, equality and hash."""
    quick, usual = (lambda made=of[name]: made(*words, **named) for of in (QUICK, USUAL))
    assert _told(usual) == _told(quick)
    if "Error" in _told(usual):
        return
    for act in (
        lambda make: make() == make(),
        lambda make: make() != 3,
        lambda make: hash(make()),
        lambda make: dataclasses.replace(make(), **named),
        lambda make: dataclasses.asdict(make()),
        lambda make: make().__class__.__match_args__,
        lambda make: setattr(make(), make().__match_args__[0], 1),
        lambda make: delattr(make(), make().__match_args__[0]),
        lambda make: copy.deepcopy(make()),
        lambda make: copy.copy(make()),
        lambda make: inspect.signature(make().__class__),
        lambda make: make().__slots__,
        lambda make: make().first,
        lambda make: make().__class__.__dataclass_params__.frozen,
    ):
        assert _told(lambda act=act: act(usual)) == _told(lambda act=act: act(quick))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "words", "changes"),
    [
        ("Empty", (), {}),
        ("Empty", (), {"size": 1}),
        ("One", (1.0,), {"value": NAN}),
        ("Many", ("a", (1, 2), ["x"]), {}),
        ("Many", ("a", (1, 2), ["x"]), {"name": "b", "more": ["y"]}),
        ("Many", ("a",), {"title": "b"}),
        ("Many", ("a",), {"first": "b"}),
        ("Checked", (3,), {"size": 4}),
        ("Checked", (3,), {"size": -4}),
        ("Odd", ("a",), {"seen_s": 2.0}),
    ],
)
def test_a_changed_record_is_the_standard_librarys(
    name: str, words: tuple[Any, ...], changes: dict[str, Any]
) -> None:
    """Its fields, its class, what is refused; the first record stays as it was, and the second is as frozen."""
    quick, usual = QUICK[name](*words), USUAL[name](*words)
    before = repr(quick)
    try:
        wanted = dataclasses.replace(usual, **changes)
    except Exception as error:  # noqa: BLE001  which one it is, is compared
        with pytest.raises(type(error)):
            records.replace(quick, **changes)
        return
    changed = records.replace(quick, **changes)

    assert (str(wanted), type(quick), before) == (str(changed), type(changed), repr(quick))
    assert changed == type(quick)(
        **{one.name: getattr(changed, one.name) for one in dataclasses.fields(quick)}
    ) or "nan" in before + repr(changed)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        changed.name = "c"
    assert repr(records.replace(changed)) == repr(changed)


def test_what_is_no_quick_record_is_replaced_by_the_standard_library() -> None:
    """Whoever imports `replace` from here may give it any dataclass."""
    assert USUAL["One"](2.0) == records.replace(USUAL["One"](1.0), value=2.0)
    with pytest.raises(TypeError):
        records.replace(3)  # type: ignore[type-var]


def test_a_record_of_another_class_is_another() -> None:
    """Though its fields are the same."""
    assert QUICK["One"](1.0) != USUAL["One"](1.0)
    assert QUICK["One"](1.0) in {QUICK["One"](1.0)}


def _ours() -> Iterator[Any]:
    for package in (ftrun.slurm, ftrun.supervisor):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith(("__main__", "native.child")):
                module = importlib.import_module(info.name)
                yield from (
                    one
                    for one in vars(module).values()
                    if isinstance(one, type) and dataclasses.is_dataclass(one) and one.__module__ == info.name
                )


def test_all_records_take_the_arguments_that_usual_ones_would() -> None:
    """In their order, with their defaults."""
    seen = 0
    for one in _ours():
        if one.__init__.__qualname__ != f"{one.__qualname__}.__init__" or not one.__dataclass_params__.frozen:
            continue
        rows = [
            (
                f.name,
                f.type,
                field(default=f.default, init=f.init)
                if f.default is not dataclasses.MISSING
                else field(default_factory=f.default_factory, init=f.init)
                if f.default_factory is not dataclasses.MISSING
                else field(init=f.init),
            )
            for f in dataclasses.fields(one)
        ]
        usual = dataclasses.make_dataclass(one.__name__, rows, frozen=True, slots=True)
        assert str(inspect.signature(usual)) == str(inspect.signature(one))
        seen += 1
    assert seen > 100


@records.dataclass(frozen=True, slots=True)
class Sent:
    """Known by its module, as whatever is pickled."""

    name: str
    sizes: tuple[int, ...] = (1, 2)


def test_a_record_can_be_sent() -> None:
    """By pickle, as between processes."""
    assert pickle.loads(pickle.dumps(Sent("a"))) == Sent("a")
