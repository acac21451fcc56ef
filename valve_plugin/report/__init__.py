"""From records to what people read: certificates and plans."""
