"""All that can be reproduced, by name."""

from __future__ import annotations

from unfit.base.errors import unknown
from unfit.lab.reproduce import buzaglo2023, haim2022
from unfit.lab.reproduce.item import Item

ITEMS: tuple[Item, ...] = (*haim2022.ITEMS, *buzaglo2023.ITEMS)


def chosen(name: str) -> list[Item]:
    """One item, those of a paper, or all."""
    items = [item for item in ITEMS if name in (item.name, item.name.partition("/")[0], "all")]
    if not items:
        raise unknown("figure or table", name, ["all", "haim2022", "buzaglo2023", *(item.name for item in ITEMS)])
    return items
