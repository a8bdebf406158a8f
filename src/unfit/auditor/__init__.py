"""The auditor's side: private and unseen samples, matches, the verdict, and its evidence."""
