"""The mathematics: arrays in, arrays out. One patient step, one model step, used again and again."""
