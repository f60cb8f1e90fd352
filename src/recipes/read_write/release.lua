-- KEYS[1]  the lock, see read_write.lua
-- ARGV[1]  our field: r:<token>, w:<token>, or the intent i:<token>
-- returns  1 if the hold was ours and is over now, 0 if it was not ours
--
-- Removes nobody else's field, unless its end has passed. The key goes with the last of them. A writer's companion
-- stays: the next fencing token has to be greater than the last.

-- All holders, or an error. `ARGV[1]` is the field: a reader's, a writer's, or the intent of a writer that gives up
-- waiting. Not there, or its end has passed: it was not ours any more.
local wrong = look()
if wrong then
  return wrong
end
if not ends[ARGV[1]] then
  return 0
end
-- Our field goes, what is over goes, and nobody else's. With the last of them the key goes.
drop(ARGV[1])
store()
return 1
