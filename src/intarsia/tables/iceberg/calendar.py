"""Days and dates of any year, where the standard library stops at 1 and 9999."""

from __future__ import annotations

_ERA_DAYS = 146_097  # 400 years
_EPOCH_DAYS = 719_468  # from the first of March of year 0 to 1970-01-01


def days_before_month(month: int) -> int:
    """The days from 1970-01-01 to the first of a month, counted from January 1970."""
    year, index = 1970 + month // 12, month % 12
    # Years are counted from March, so that the leap day is their last.
    shifted = year if index >= 2 else year - 1
    era, in_era = divmod(shifted, 400)
    day_of_year = (153 * ((index + 10) % 12) + 2) // 5
    return era * _ERA_DAYS + in_era * 365 + in_era // 4 - in_era // 100 + day_of_year - _EPOCH_DAYS


def date_of_day(day: int) -> tuple[int, int, int]:
    """Year, month and day of the month of a day counted from 1970-01-01."""
    era, in_era = divmod(day + _EPOCH_DAYS, _ERA_DAYS)
    year = (in_era - in_era // 1460 + in_era // 36_524 - in_era // (_ERA_DAYS - 1)) // 365
    day_of_year = in_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
