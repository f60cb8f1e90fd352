-- KEYS[1]  the lock, see holders.lua
-- ARGV[1]  our field: r:<token>, w:<token>, or the intent i:<token>
-- returns  1 if the hold was ours and is over now, 0 if it was not ours
--
-- Removes no other holder's field, unless its end has passed. The key is deleted with the last
-- field. A writer's companion stays, so that the next fencing token is greater.

local wrong = read_holders()
if wrong then
  return wrong
end
if not ends[ARGV[1]] then
  return 0
end
drop(ARGV[1])
store()
return 1
