"""Who runs the patient step: threads here, other machines later."""
