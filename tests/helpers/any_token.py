"""A constraint that allows everything."""

from __future__ import annotations


class AnyToken:
    def fill_mask(self, mask: object) -> None:
        pass

    def accept(self, token: int) -> None:
        pass

    def is_done(self) -> bool:
        return False
