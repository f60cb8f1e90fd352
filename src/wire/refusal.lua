-- Encloses each script. A replica executes a script up to its first write. One that is behind its
-- master would refuse what the master grants, and call a lock free or taken away that is held. So a
-- refusal ends with a write that changes nothing, whatever the key holds. A replica refuses it, and
-- that is the reply. Any other error, such as a missing right to `SETRANGE`, changes nothing.
local function answer()
-- the script
end
local reply = answer()
if not reply or reply == 0 or type(reply) == 'table' and #reply < 2 then
  local written = redis.pcall('SETRANGE', KEYS[1], 0, '')
  if type(written) == 'table' and string.find(written.err, 'READONLY', 1, true) then
    return redis.error_reply('READONLY the server is a replica')
  end
end
return reply
