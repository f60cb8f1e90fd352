-- Encloses each script. A replica executes a script up to its first write. One that is behind its
-- master would refuse what the master grants, and call a held lock free or taken away. So a refusal
-- ends with a write that changes nothing: the key gets the name that it has. A replica refuses it,
-- and that is the reply. Any other error counts for nothing, such as a missing right to `RENAMENX`.
local function answer()
-- the script
end
local reply = answer()
if not reply or reply == 0 or type(reply) == 'table' and #reply < 2 then
  local written = redis.pcall('RENAMENX', KEYS[1], KEYS[1])
  if type(written) == 'table' and string.find(written.err, 'READONLY', 1, true) then
    return redis.error_reply('READONLY the server is a replica')
  end
end
return reply
