// finite_range(): CLI::Range that also rejects NaN. CLI::Range accepts it, because every comparison
// with NaN is false.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace verbena {

inline CLI::Validator finite_range(double least, double most) {
  const CLI::Range range(least, most);
  return CLI::Validator(
      [range](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && std::isnan(value))
          return text + " is not a number";
        return range(text);
      },
      range.get_description());
}

}  // namespace verbena
