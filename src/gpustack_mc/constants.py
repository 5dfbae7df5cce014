"""Exact conversions, and nothing else. The units in the comments are what the unit test multiplies by."""

SECONDS_PER_HOUR = 3600.0  # s/h
MINUTES_PER_HOUR = 60.0  # min/h
HOURS_PER_DAY = 24.0  # h/day
HOURS_PER_YEAR = 8766.0  # h/year, the Julian year of 365.25 days
WATTS_PER_MEGAWATT = 1e6  # W/MW
KILOWATT_HOURS_PER_MEGAWATT_HOUR = 1e3  # kWh/MWh
WATTS_PER_KILOWATT = 1e3  # W/kW
GRAMS_PER_TONNE = 1e6  # gCO2e/tCO2e
GRAMS_PER_KILOGRAM = 1e3  # gCO2e/kgCO2e
KILOGRAMS_PER_TONNE = 1e3  # kgCO2e/tCO2e
LITRES_PER_CUBIC_METRE = 1e3  # L/m^3
BITS_PER_BYTE = 8.0  # bit/byte
BITS_PER_GIGABIT = 1e9  # bit/Gbit
TOKENS_PER_MILLION = 1e6  # token
FLOP_PER_PARAM_AND_TOKEN = 6.0  # FLOP/token: 2 forward, 4 backward (Kaplan et al. 2020, arXiv:2001.08361, table 1)
