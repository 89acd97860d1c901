// Draws charts as SVG: axes, grid, curves, legend.
#include "tools/daq/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace verbena::daqtool {
namespace {

constexpr double kWidth = 520, kHeight = 380, kLeft = 60, kRight = 20, kTop = 40, kBottom = 60;
constexpr const char* kColours[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad"};

// 1, 2 or 5 times a power of ten, for about five grid lines.
double step_for(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (most / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

std::string number_text(double x) {
  if (x >= 1 << 20) return fmt::format("{:g}Mi", x / (1 << 20));
  if (x >= 1 << 10) return fmt::format("{:g}Ki", x / (1 << 10));
  return fmt::format("{:g}", x);
}

std::string draw_chart(const Chart& chart, double shift) {
  double low = 1e300, high = 0, most = 1e-3;
  for (const Curve& curve : chart.curves) {
    for (const auto& [x, y] : curve.points) {
      low = std::min(low, x);
      high = std::max(high, x);
      most = std::max(most, y);
    }
  }
  if (high == 0) return "";
  if (high == low) high = low * 2;
  const double step = step_for(most);
  const int lines = static_cast<int>(std::ceil(most / step));
  const double top = lines * step;
  const auto at_x = [&](double x) {
    return kLeft + (std::log2(x / low) / std::log2(high / low)) * (kWidth - kLeft - kRight);
  };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - y / top * (kHeight - kTop - kBottom);
  };

  std::string svg = fmt::format("<g transform=\"translate({} 0)\">\n", shift);
  svg += fmt::format("<text x=\"{}\" y=\"22\" font-size=\"15\">{}</text>\n", kLeft, chart.title);
  for (int line = 0; line <= lines; ++line) {
    const double y = line * step;
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
                       kLeft, kWidth - kRight, at_y(y), at_y(y));
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", kLeft - 6,
                       at_y(y) + 4, y);
  }
  const int last = static_cast<int>(std::floor(std::log2(high)));
  const int every = std::max(1, static_cast<int>(std::ceil((last - std::log2(low)) / 8)));
  for (int power = static_cast<int>(std::ceil(std::log2(low))); power <= last; power += every) {
    const double x = std::exp2(power);
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#eee\"/>\n",
                    at_x(x), kTop, kHeight - kBottom);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at_x(x),
                       kHeight - kBottom + 18, number_text(x));
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 18, chart.x_axis);
  svg += fmt::format(
      "<text x=\"16\" y=\"{}\" transform=\"rotate(-90 16 {})\" "
      "text-anchor=\"middle\">Gb/s</text>\n",
      kHeight / 2, kHeight / 2);
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    const char* const colour = kColours[i % std::size(kColours)];
    std::string points;
    for (const auto& [x, y] : chart.curves[i].points) {
      points += fmt::format("{:.1f},{:.1f} ", at_x(x), at_y(y));
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", at_x(x),
                         at_y(y), colour);
    }
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points, colour);
    const double y = kTop + 14 + 18 * static_cast<double>(i);
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{}\"/>",
                       kLeft + 14, y - 4, colour);
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", kLeft + 34, y + 2, chart.curves[i].name);
  }
  return svg + "</g>\n";
}

}  // namespace

std::string draw_svg(const std::vector<Chart>& charts) {
  const double width = kWidth * static_cast<double>(charts.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      width, kHeight);
  for (size_t i = 0; i < charts.size(); ++i)
    svg += draw_chart(charts[i], kWidth * static_cast<double>(i));
  return svg + "</svg>\n";
}

}  // namespace verbena::daqtool
