"""From events to a cohort: code groups, index dates, windows, matching, filters, and the attrition table."""
