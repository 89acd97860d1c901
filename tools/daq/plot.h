// Draws curves as an SVG picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace verbena::daqtool {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title;
  std::string x_axis;  // logarithmic
  std::vector<Curve> curves;
};

// Charts side by side; the vertical axis is Gb/s from 0.
std::string draw_svg(const std::vector<Chart>& charts);

}  // namespace verbena::daqtool
